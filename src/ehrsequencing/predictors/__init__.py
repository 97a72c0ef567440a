"""Predictors: whatever answers "what is the risk of these rows?".

Reading order: `predictor` (what all have in common), `network`, `history` and `fitting_data` (what the others are
fitted to), `cox`, `boosted` and `trees`, `blend`, `fit` (Aalen–Johansen, age + sex, and all baselines, the strongest
first), `from_file`.
"""
