"""`ehrseq serve`: a run as a service on this machine: JSON and CDS Hooks over HTTP, and the explorer's page.

One thread has the model (`predictor.py`). Requests come through `security.py`, which knows hosts, tokens and limits,
and `app.py` says what each path answers. Nothing of a request is written to disk or to a log.
"""
