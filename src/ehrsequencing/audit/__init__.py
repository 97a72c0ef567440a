"""The audit: tests of a trained model and its data for leaks of the future. `audit.py` lists the checks in order."""
