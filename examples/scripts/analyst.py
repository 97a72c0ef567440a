"""A hospital analyst: who is at highest risk today, and why is the first of them on the list?"""

import ehrsequencing as eh

run = eh.load("runs/hf")
print(run)

risk = run.predict("meds/", at="last", horizons=["90d", "1y"])
highest = risk.nlargest(10, "hf_1y")
highest.to_csv("highest.csv", index=False)

first = int(highest.subject_id.iloc[0])
ax = run.plot_risk("meds/", subject=first)
ax.figure.savefig("first.png", dpi=150)
weights = run.attention("meds/", subject=first)
print(weights[weights.time == weights.time.max()].nlargest(5, "weight"))
