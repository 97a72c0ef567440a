"""For a paper, from one folder of MEDS: tables, hazard ratios, figures, TRIPOD items, and a walk by site."""

from pathlib import Path

import ehrsequencing as eh

# PBC2 has no hospitals: the arms of its trial stand for them. Data with a column of sites is used as it is
rows = eh.read_meds("meds/")
arm = rows[rows.code.str.startswith("DRUG//")].set_index("subject_id").code
rows = rows[~rows.code.isin(arm)].assign(site=rows.subject_id.map(arm))
Path("sites/data").mkdir(parents=True)
rows.to_parquet("sites/data/0.parquet")

run = eh.run(
    "sites/",
    "task.yaml",
    out="study/",
    training={"network": False},  # trees and Cox alone, in a minute; leave it out to train the network too
    splits={"by": "site", "column": "site", "held_out_sites": ["DRUG//placebo"], "train": 0.75, "tuning": 0.25},
    evaluation={"tripod": "tripod.yaml", "bootstrap": 200},  # what only the authors know: examples/tripod.yaml
)
ev, out = run.evaluation, Path("paper")
out.mkdir()

# tables: who was studied, how good each model is, hazard ratios as R's coxph gives them
ratios = run.cox(["serBilir", "age", "GENDER"], log=["serBilir"], units={"age": 10})
(out / "table1.tex").write_text(ev.table1().to_latex(), encoding="utf-8")
(out / "table2.tex").write_text(ev.table2("5y").to_latex(), encoding="utf-8")
(out / "hazard-ratios.tex").write_text(ratios.to_latex(float_format="%.2f"), encoding="utf-8")
ev.operating_points("5y").to_csv(out / "operating-points.csv", index=False)

# figures
for name in ("calibration", "decision_curve", "incidence"):
    axes = getattr(ev, f"plot_{name}")()
    axes.figure.savefig(out / f"{name}.pdf", bbox_inches="tight")

# validation elsewhere: each site is left out of training once; the forest plot is in study/run/walk/site
eh.evaluate(run, walk="site", bootstrap=200)
