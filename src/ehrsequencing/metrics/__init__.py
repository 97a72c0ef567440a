"""Metrics of competing risks, weighted for censoring: plain arrays in, numbers out.

Reading order: `censoring` (Kaplan–Meier, Aalen–Johansen, the censoring distribution), `outcomes` (the rows that every
metric takes), `metric` (what a metric is), `discrimination`, `accuracy`, `calibration`, `registry` (all metrics),
`decision`, `bootstrap` (intervals over subjects). `docs/metrics.md` has the definitions, the tie rules, and which
library checks what.
"""
