"""Evaluation: a run beside its baselines, and beside the truth of a simulation, on the same prediction times.

Reading order: `population` (the subjects), `comparison` (the rows that are compared), `estimates` (metrics with
intervals, paired differences), `evaluate` (all of it for one run), then `context`, `curves`, `subgroups`, `drift`,
`oracle`, `external` (other data), `repeated_splits`.
"""
