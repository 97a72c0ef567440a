"""A researcher: a new loss by `eh.fit` and in a loop of one's own, beside the likelihood, Cox and trees."""

import torch

import ehrsequencing as eh

data = eh.load("prepared/")  # made by eh.prepare("meds/", "task.yaml", out="prepared/")
small, year = {"dim": 16, "heads": 2, "layers": 1}, 365.25


def ranked(model, batch):
    """The likelihood, and pairs: who had the event within a year ranks above who was free of it then."""
    risk = model.risk(batch, [year])[:, 0, 0]
    had = batch.at_risk & (batch.cause == 1) & (batch.duration_days <= year)
    gaps = risk[batch.at_risk & (batch.duration_days > year)] - risk[had][:, None]
    pairs = torch.exp(gaps / 0.1).mean() if gaps.numel() else 0.0
    return model.loss(batch) + 0.2 * pairs


runs = []
for seed in (0, 1):
    settings = {"model": small, "epochs": 2, "min_steps": 4, "seed": seed}
    runs.append(eh.fit(data, out=f"runs/ranked-{seed}", loss=ranked, callbacks=[print], **settings))
    settings |= {"blend": False, "distillation": 0.0}  # the network alone, by the likelihood
    runs.append(eh.fit(data, out=f"runs/likelihood-{seed}", **settings))

# a loop of one's own: any optimiser, any order of the batches
edges = (180.0, year, 2 * year)
config = eh.ModelConfig(vocab_size=len(data.vocabulary), causes=2, edges_days=edges, **small)
model = eh.HierarchicalBEHRTForSurvival(config)
model.start_at_rates(next(data.batches("train", visit_budget=10**6)))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for batch in data.batches("train", shuffle=0):
    optimizer.zero_grad()
    ranked(model, batch).backward()
    optimizer.step()
runs.append(eh.save_run(model, data, out="runs/own-loop"))

comparison = eh.compare(runs, bootstrap=20)
print(comparison)  # mean ± sd over the seeds of the same settings
evaluation = eh.evaluate(runs[0], bootstrap=20)  # its report has Cox and trees beside it
vectors = runs[0].embed("meds/")  # a row a patient
