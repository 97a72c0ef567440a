"""A turn of PyHealth's Transformer, in PyHealth's environment: `python pyhealth_step.py step|load SAMPLES …`.

SAMPLES is what `ours.py export` wrote: subjects in batches, each a list of visits, each a list of code names. They go
through PyHealth's own in-memory dataset, its nested-sequence processor and its padded loader.
"""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

_kept: list[Any] = []  # a library that is let go takes its names with it


def import_pyhealth() -> Any:
    """PyHealth's datasets and models, imported so that they find a torchvision and leave nothing behind.

    PyPI's torchvision holds operators compiled against torch's CUDA build. The CPU build cannot load them, and the
    import stops at the first one that it wants to describe. Their names are enough for the rest; nothing here draws.
    PyHealth makes a cache folder under HOME when it is imported, and what it imports does too: they get a HOME of their
    own inside the environment.
    """
    home = Path(sys.prefix) / "home"
    home.mkdir(exist_ok=True)
    os.environ["HOME"] = str(home)
    library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
    _kept.append(library)
    for name in ("nms", "qnms"):
        schema = f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        library.define(schema)  # type: ignore[no-untyped-call]
    from pyhealth import datasets, models  # type: ignore[import-not-found]

    return datasets, models


def main() -> None:
    """Read the samples, build what is asked for, and wait for turns."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["step", "load"])
    parser.add_argument("samples", type=Path)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=32)
    arguments = parser.parse_args()
    from turns import serve

    datasets, models = import_pyhealth()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    torch.manual_seed(0)
    samples = json.loads(arguments.samples.read_text())
    dataset = datasets.create_sample_dataset(
        [
            {"patient_id": str(s["subject_id"]), "codes": s["visits"], "label": s["label"]}
            for s in samples
        ],
        {"codes": "nested_sequence"},
        {"label": "binary"},
    )
    # samples stand in our batches
    loader = datasets.get_dataloader(dataset, batch_size=arguments.batch, shuffle=False)
    first = next(iter(loader))
    facts: dict[str, Any] = {"shape": list(first["codes"].shape), "torch": torch.__version__}
    if arguments.what == "load":

        def load() -> int:
            return sum(len(batch["label"]) for batch in loader)

        serve(load, facts)
        return
    model = models.Transformer(
        dataset,
        embedding_dim=arguments.dim,
        heads=arguments.heads,
        num_layers=arguments.layers,
        dropout=0.0,
    )
    for module in model.modules():
        if isinstance(module, nn.Dropout):  # attention keeps its 0.1 whatever the argument says
            module.p = 0.0
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, fused=True)
    batches = list(loader)
    model.train()

    def step() -> int:
        subjects = 0
        for batch in batches:
            optimizer.zero_grad(set_to_none=True)
            model(**batch)["loss"].backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            subjects += len(batch["label"])
        return subjects

    serve(step, facts | {"parameters": sum(p.numel() for p in model.parameters())})


if __name__ == "__main__":
    main()
