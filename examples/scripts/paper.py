"""For a paper, from one folder of MEDS: tables, hazard ratios, figures, TRIPOD items, and a walk by site."""

from pathlib import Path

import ehrsequencing as eh

quick = {"network": False}  # trees and Cox alone, in a minute; leave it out to train the network too
halves = {"by": "hash", "train": 0.45, "tuning": 0.15}  # a cohort of hundreds; thousands leave it out
tripod = {"tripod": "tripod.yaml", "bootstrap": 200}  # what only the authors know: examples/tripod.yaml

run = eh.run("meds/", "task.yaml", out="study/", training=quick, splits=halves, evaluation=tripod)
ev, out = run.evaluation, Path("paper")
out.mkdir(exist_ok=True)

# tables: who was studied, how good each model is, hazard ratios as R's coxph gives them
ratios = run.cox(["serBilir", "age", "GENDER"], log=["serBilir"], units={"age": 10})
(out / "table1.tex").write_text(ev.table1().to_latex(), encoding="utf-8")
(out / "table2.tex").write_text(ev.table2("5y").to_latex(), encoding="utf-8")
(out / "hazard-ratios.tex").write_text(ratios.to_latex(float_format="%.2f"), encoding="utf-8")
ev.operating_points("5y").to_csv(out / "operating-points.csv", index=False)

# figures
for name in ("calibration", "decision_curve", "incidence", "stacked_incidence"):
    axes = getattr(ev, f"plot_{name}")()
    axes.figure.savefig(out / f"{name}.pdf", bbox_inches="tight")

# a walk by site: leave one out, train on the others, validate where nobody was seen in training
rows = eh.read_meds("meds/")
arm = rows[rows.code.str.startswith("DRUG//")].set_index("subject_id").code  # your column of sites
rows = rows[~rows.code.isin(arm)]  # what names a site is no predictor
site = rows.subject_id.map(arm)
for left_out in sorted(arm.unique()):
    name = left_out.rpartition("//")[2]
    data = eh.prepare(rows[site != left_out], "task.yaml", out=f"walk/{name}/prepared", splits=halves)
    without = eh.fit(data, out=f"walk/{name}/run", **quick)
    there = eh.evaluate(without, data=rows[site == left_out], out=f"walk/{name}/there", bootstrap=200)
    print(f"trained without {name}, evaluated there", there.table2("5y"), sep="\n")
