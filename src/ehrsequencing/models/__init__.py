"""Models: packed visits → logits of hazards, in the seeds' own words. Imports torch, `config` and `batch` only."""
