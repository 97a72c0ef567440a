"""The functions that people call, in Python and through the commands; `ehrsequencing/__init__.py` has the public names.

`data` (frames, `read_meds`, `prepare`), `training` (`fit`, `pretrain`), `run` (`load`, predictions and plots of a run),
`evaluate` (`evaluate`, `score`, reports), `evaluation` (what an evaluation found), `estimator` (for scikit-learn).
"""
