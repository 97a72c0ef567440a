"""A hospital analyst: from OMOP tables to a report, a list of who is at highest risk today, and a picture."""

import ehrsequencing as eh

account = eh.import_omop("omop/", "records/")
print(account)
print(eh.codes("records/").head(5))

task = {
    "name": "death",
    "index": {"first_visit": True},
    "outcome": {"death": "MEDS_DEATH"},
    "censoring": {"dataset_end": True},
    "horizons": ["1y", "2y"],
}
print(eh.check("records/", task))

run = eh.run(
    "records/",
    task,
    out="study/",
    model={"dim": 16, "heads": 2, "layers": 1},  # a real study leaves these lines out
    training={"epochs": 2, "min_steps": 4, "blend": False},
    evaluation={"bootstrap": 20, "baselines": "none"},
)
print(run)
print("open", run.evaluation.report)

risk = run.predict("records/", at="last", horizons=["1y"])
highest = risk.nlargest(10, "death_1y")
highest.to_csv("highest.csv", index=False)
first = int(highest.subject_id.iloc[0])
run.plot_risk("records/", subject=first).figure.savefig("first.png", dpi=150)
print(run.explain("records/", subject=first, kind="code").head())
