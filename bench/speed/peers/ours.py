"""Our side of the comparison, in our own environment: `python ours.py export|step|load PREPARED SAMPLES …`.

`export` draws the batches that every contender gets: SAMPLES (JSON) holds subjects in batches, each with the codes of
its visits up to its last prediction time, and a label; beside it stand the same moments as MEDS labels.
"""

import argparse
import itertools
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import nn
from turns import serve

from ehrsequencing.batches.loader import SubjectLoader
from ehrsequencing.batches.visit_batch import VisitBatch
from ehrsequencing.config import ModelConfig, ModelSettings, StudyConfig
from ehrsequencing.models.ensemble import build_model
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.training.plan import Plan
from ehrsequencing.training.train import Trainer

LABELS = [
    ("subject_id", pa.int64()),
    ("prediction_time", pa.timestamp("us")),
    ("boolean_value", pa.bool_()),
]


class Store:
    """The training split of a prepared set with one task."""

    def __init__(self, folder: Path) -> None:
        self.prepared = Prepared(folder, verify=False)
        self.task = self.prepared.task(self.prepared.only_task())
        records = self.prepared.records(self.task.name, "train")
        self.timelines, self.rows, self.loader = (
            records.timelines,
            records.rows,
            SubjectLoader(records),
        )

    def rows_of(self, subject_ids: list[int]) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Places of subjects in the store, whose ids are sorted."""
        return np.searchsorted(np.asarray(self.timelines.subject_id), np.asarray(subject_ids))


def export(store: Store, samples: Path, *, subjects: int, seed: int) -> None:
    """Draw subjects, write what they hold up to their last prediction time."""
    timelines, rows, loader = store.timelines, store.rows, store.loader
    with_visits = loader.subjects[loader.n_visits[loader.subjects] > 0]
    drawn = np.random.default_rng(seed).permutation(with_visits)[:subjects]
    out, labels = [], []
    for s in drawn.tolist():
        start = int(timelines.subject_offsets[s])
        bounds = np.asarray(timelines.visit_offsets[start : start + int(loader.n_visits[s]) + 1])
        visits = [
            [str(code) for code in timelines.codes[a:b]] for a, b in itertools.pairwise(bounds)
        ]
        last = int(rows.row_offsets[s + 1]) - 1
        label = bool(rows.cause[last] == 1)
        subject_id = int(timelines.subject_id[s])
        out.append({"subject_id": subject_id, "visits": visits, "label": int(label)})
        labels.append((subject_id, int(rows.prediction_us[last]), label))
    samples.write_text(json.dumps(out))
    folder = samples.with_suffix("")
    folder.mkdir(exist_ok=True)
    columns = [
        pa.array(column).cast(kind)
        for column, (_, kind) in zip(zip(*labels, strict=True), LABELS, strict=True)
    ]
    pq.write_table(
        pa.Table.from_arrays(columns, schema=pa.schema(LABELS)), folder / "labels.parquet"
    )


def same_inputs_batch(samples: list[dict[str, Any]]) -> VisitBatch:
    """What PyHealth's Transformer gets, and no more: codes of visits; one label a subject, on its last visit."""
    visits = [visit for sample in samples for visit in sample["visits"]]
    ends = torch.tensor([len(sample["visits"]) for sample in samples]).cumsum(0)
    cause = torch.zeros(len(visits), dtype=torch.int64)
    cause[ends - 1] = torch.tensor([sample["label"] for sample in samples])
    return VisitBatch(
        codes=torch.tensor([int(code) for visit in visits for code in visit]),
        visit_offsets=torch.tensor([0, *itertools.accumulate(len(visit) for visit in visits)]),
        subject_offsets=torch.cat([torch.zeros(1, dtype=torch.int64), ends]),
        age_years=torch.full((len(visits),), float("nan")),
        delta_days=torch.zeros(len(visits)),
        at_risk=torch.ones(len(visits), dtype=torch.bool),
        cause=cause,
    )


def same_inputs_config(store: Store, **sizes: int) -> ModelConfig:
    """The nearest thing that we have to PyHealth's Transformer: a sum of codes, a transformer over visits, no more."""
    return ModelConfig(
        vocab_size=len(store.prepared.vocabulary),
        visit_encoder="sum",
        visit_mlp=False,
        values="none",
        position="none",
        age_bin_years=0,
        delta_bins="none",
        head="visit",
        dropout=0.0,
        history_dropout=0.0,
        **sizes,
    )


def main() -> None:
    """Export, or build what is asked for and wait for turns."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["export", "step", "load"])
    parser.add_argument("prepared", type=Path)
    parser.add_argument("samples", type=Path)
    parser.add_argument("--subjects", type=int, default=256, help="export: how many")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--inputs", choices=["all", "codes"], default="all", help="step: what the model is given"
    )
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=32)
    arguments = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    torch.manual_seed(0)
    store = Store(arguments.prepared)
    if arguments.what == "export":
        export(store, arguments.samples, subjects=arguments.subjects, seed=arguments.seed)
        return
    samples = json.loads(arguments.samples.read_text())
    groups = [samples[i : i + arguments.batch] for i in range(0, len(samples), arguments.batch)]
    if arguments.what == "load":
        draws = [store.rows_of([sample["subject_id"] for sample in group]) for group in groups]

        def load() -> int:
            return sum(store.loader.collate(draw).batch.n_subjects for draw in draws)

        first = store.loader.collate(draws[0]).batch
        serve(
            load,
            {
                "shape": repr(first),
                "torch": torch.__version__,
                "codes_per_subject": first.n_codes / len(groups[0]),
            },
        )
        return

    sizes = {"dim": arguments.dim, "heads": arguments.heads, "layers": arguments.layers}
    if arguments.inputs == "codes":
        model = build_model(same_inputs_config(store, **sizes))
        ready = [same_inputs_batch(group) for group in groups]
    else:
        study = StudyConfig(model=ModelSettings(dropout=0.0, history_dropout=0.0, **sizes))
        plan = Plan.of(store.prepared, store.task.name, study, as_given=True)
        model = Trainer(plan).model  # as `ehrseq train` makes it
        ready = [
            store.loader.collate(store.rows_of([s["subject_id"] for s in group])).batch
            for group in groups
        ]
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, fused=True)
    model.train()

    def step() -> int:
        subjects = 0
        for batch in ready:
            optimizer.zero_grad(set_to_none=True)
            model.loss(batch, divisor=arguments.batch).backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            subjects += batch.n_subjects
        return subjects

    parameters = sum(p.numel() for p in model.parameters())
    serve(step, {"shape": repr(ready[0]), "torch": torch.__version__, "parameters": parameters})


if __name__ == "__main__":
    main()
