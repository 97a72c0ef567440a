"""Pretraining: a model learns from records without labels."""
