"""Training: the loop, and checkpoints that resume to the same bit."""
