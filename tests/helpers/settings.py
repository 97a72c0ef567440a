"""Settings of runs that train in seconds."""

TINY = (
    "model.dim=16",
    "model.heads=2",
    "model.layers=1",
    "training.epochs=2",
    "training.min_steps=4",
    "evaluation.explained_subjects=0",
)
