"""Which numbers about few people may leave the data: the report and `metrics.json` are made by these rules.

`small_counts` is the method, `counts` the counts of an evaluation, `derived` the numbers that are made of counts, and
`shared` the view of an evaluation that `metrics.json` holds.
"""
