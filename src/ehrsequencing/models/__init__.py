"""Models: a packed batch of visits goes in, logits of hazards come out. Start with `hierarchical.py`."""
