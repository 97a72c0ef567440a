"""Evaluation: a run beside its baselines, and beside the truth of a simulation, on the same prediction times.

From data to the result: `population` (the people) and `evaluated` and `rivals` (predictors; the truth is in `oracle`)
give `comparison` (one table of rows a landmark) with `follow_up` (who is followed how long). `estimates`, `curves` and
`subgroups` turn rows into numbers with intervals over people. `evaluate` puts one result together, `results` writes it.
`external`, `score`, `repeated_splits`, `pooling` and `outcome_table` are other questions answered with the same parts.
"""
