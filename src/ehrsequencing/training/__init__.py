"""Training: the loop on Lightning Fabric, and checkpoints that resume to the same bit."""
