"""A biostatistician: a flat table with columns that change over time, to hazard ratios and the tables of a paper."""

import pandas as pd

import ehrsequencing as eh

frame = pd.read_csv("flat.csv")  # id, day, albumin, sex, status: one row for each visit
data, task = eh.from_table(frame, subject="id", time="day", event="status", out="flat/", horizons=["200d", "300d"])
run = eh.run(
    data,
    task,
    out="paper/",
    model={"dim": 16, "heads": 2, "layers": 1},  # a real study leaves these lines out
    training={"epochs": 2, "min_steps": 4, "blend": False, "distillation": 0},
    evaluation={"bootstrap": 20},
    splits={"train": 0.4, "tuning": 0.1},
)

# as R's survival::coxph(Surv(start, stop, status) ~ albumin + sex, cluster = id), with cox.zph's test
print(run.cox(["albumin", "sex"], units={"albumin": 0.5}).round(3))

ev = run.evaluation
print(ev.table1().to_markdown())
print(ev.table2("300d").to_latex())
print(ev.calibration("300d"), ev.operating_points("300d"), ev.subgroups(), sep="\n")

table = ev.outcomes()
# for R, which takes the first level for censoring: survival::survfit(Surv(duration_days, factor(cause, 0:1)) ~ 1)
table.to_csv("outcomes.csv", index=False)
c = eh.metrics.concordance(table.duration_days, table.cause, table.status_300d, horizon=300)
print(f"C by 300 days: {c:.4f}")
curve = ev.aalen_johansen("status")
print(f"observed by 300 days: {curve(300):.3f}, predicted: {table.status_300d.mean():.3f}")
ev.plot_calibration("300d").figure.savefig("calibration.svg")
