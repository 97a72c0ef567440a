"""Reporting: figures and the self-contained report that people look at."""
