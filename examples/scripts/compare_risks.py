"""Any models on plain arrays: two columns of risks, times and causes, to the comparison of a paper."""

import pandas as pd

import ehrsequencing as eh

rows = pd.read_csv("risks.csv")  # days, cause (0 = censored, 1 = the event, 2 = competing), cox, boosted
found = eh.compare_risks({"Cox": rows.cox, "boosted": rows.boosted}, rows.days, rows.cause, horizon="1y", bootstrap=200)
print(found, found.differences[["metric", "value", "low", "high"]], found.operating_points().head(), sep="\n")
print(found.to_latex())
found.plot_calibration().figure.savefig("calibration.svg")
found.plot_decision_curve().figure.savefig("decision.svg")
