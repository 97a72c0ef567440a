"""Metrics of competing risks, weighted for censoring: plain arrays in, numbers out.

Reading order: `censoring` (Kaplan–Meier, Aalen–Johansen, the censoring distribution), `outcomes` (the rows that every
metric takes), `definitions` (discrimination and overall accuracy), `calibration`, `decision`, `bootstrap` (intervals
over subjects). `docs/metrics.md` has the definitions, the tie rules, and which library checks what.
"""
