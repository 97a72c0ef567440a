"""A researcher: a visit encoder and a training loop of one's own, then the same model by `eh.fit`."""

import torch
from torch import nn

import ehrsequencing as eh
from ehrsequencing.models.segments import pool


@eh.visit_encoder("saturated")
class SaturatedMean(nn.Module):
    def __init__(self, config):
        super().__init__()

    def forward(self, codes, batch):  # vectors of K codes in N visits → (N, d)
        return pool(codes.rows.tanh(), codes.index, batch.visit_offsets)


data = eh.prepare("meds/", task="task.yaml", out="prepared/")
small = {"dim": 16, "heads": 2, "layers": 1, "visit_encoder": "saturated"}
config = eh.ModelConfig(vocab_size=len(data.vocabulary), causes=2, edges_days=(180.0, 730.5), **small)
model = eh.HierarchicalBEHRTForSurvival(config)
model.start_at_rates(next(data.batches("train", visit_budget=10**6)))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for epoch in range(2):
    model.train()
    for batch in data.batches("train", shuffle=epoch):
        optimizer.zero_grad()
        model.loss(batch).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        tuning = [model.loss(batch).item() for batch in data.batches("tuning")]
    print(f"epoch {epoch}: tuning NLL {sum(tuning) / len(tuning):.4f}")
model.save_pretrained("mine/")

batch = next(data.batches("held_out"))
risk = batch.to_padded(model.risk(batch, horizons_days=[365.25])[:, 0, 0])  # (B, V)
print(risk.shape, batch.padded().codes.shape)

run = eh.fit(data, out="runs/saturated", model=small, training={"epochs": 2, "min_steps": 4, "blend": False}, seed=0)
print(eh.compare(["runs/hf", run], bootstrap=20).table().to_markdown())
