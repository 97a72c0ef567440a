"""A biostatistician: outcomes as a flat table, a number checked by hand, a figure for a paper."""

import ehrsequencing as eh

ev = eh.load("runs/hf").evaluation
table = ev.outcomes()
table.to_csv("outcomes.csv", index=False)  # for R: survival::survfit(Surv(duration_days, factor(cause)) ~ 1)

rows = ev.metrics.query("metric == 'c' and cause == 'hf' and horizon == '1y' and landmark == '0d'")
ours = rows[rows.model == "ehrsequencing"]
c = eh.metrics.concordance(table.duration_days, table.cause, table.hf_1y, horizon=365.25)
print(f"C by 1y: {c:.4f} here, {ours.value.iloc[0]:.4f} in the report")

observed = eh.metrics.cumulative_incidence(table.duration_days, table.cause, at=[365.25, 730.5])
print("observed:", observed.round(3), "predicted:", table[["hf_1y", "hf_2y"]].mean().round(3).tolist())
ev.plot_calibration("1y").figure.savefig("calibration.svg")
