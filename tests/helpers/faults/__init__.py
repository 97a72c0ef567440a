"""Kills and refusals of the disk at any call that a command makes: `shim.c`, preloaded into `driver.py`."""
