"""Baselines: what a model has to beat, fitted on the same subjects, prediction times and history.

Reading order: `history` (the features), `piecewise` (hazards on the run's grid), `base` (what all have in common),
`marginal`, `age_sex`, `landmark_cox`, `boosted`, `forest`, `neural` (our own flat BEHRT), and `fit`, which
fits them all and names the strongest.
"""
