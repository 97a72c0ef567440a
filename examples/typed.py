"""A user's file: `make check` type-checks it strictly and without our plugins, as in a project that has none."""

import ehrsequencing as eh

config = eh.ModelConfig(vocab_size=5)
model = eh.HierarchicalBEHRTForSurvival(config)
run = eh.load("runs/hf")
names: tuple[str, ...] = run.task.causes
encoder = eh.nn.AttnPoolingVisitEncoder(16)
