"""`ehrseq export`: a run's network as a program that needs torch and NumPy only, and everything a caller needs."""
