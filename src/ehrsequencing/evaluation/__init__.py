"""Evaluation: metrics with intervals over subjects, and baselines on the same split.

Reading order: `censoring` (Kaplan–Meier, Aalen–Johansen, the censoring distribution), `scored` (the rows that every
metric takes), `metrics` (discrimination and overall accuracy, the table), `calibration`, `decision`, `bootstrap`.
`docs/metrics.md` has the definitions, the tie rules, and which library checks what.
"""
