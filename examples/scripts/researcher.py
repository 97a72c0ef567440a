"""A researcher: a visit encoder of one's own, trained and compared with the built-in one."""

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
small, short = {"dim": 16, "heads": 2, "layers": 1}, {"epochs": 2, "min_steps": 4}
for encoder in ("attention", "saturated"):
    run = eh.fit(data, out=f"runs/{encoder}", model={**small, "visit_encoder": encoder}, training=short, seed=0)
    print(encoder, run.history["tuning_nll"].min())
