"""Packed batches of visits, their padded edge, and the loader."""
