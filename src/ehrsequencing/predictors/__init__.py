"""Predictors: whatever answers "what is the risk of these rows?".

Reading order: `predictor` (what all have in common), `network`, `fitting_data` and `history` (what the others are
fitted to), `cox` and `landmark_cox`, `boosted`, `fit` (Aalen–Johansen, age + sex, and all baselines, the strongest
first), `weights` and `blend`, `from_file`.
"""
