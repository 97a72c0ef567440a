"""Baselines: what a model has to beat, fitted on the same subjects, prediction times and history.

Reading order: `history` (the features), `base` (what all have in common), `simple` (Aalen–Johansen, age + sex), `cox`
and `landmark_cox`, `boosted`, `fit`, which fits them all and names the strongest, and `blend`.
"""
