"""Delphi-2M's own model on the same people: `python bench/delphi.py DELPHI DATA RUN OUT`.

DELPHI is a clone of https://github.com/gerstung-lab/Delphi (MIT), whose code and settings run as they are; nothing of
it is in this repository. DATA is `delphi_sim_meds`, and RUN a run of ours with every outcome
(`examples/tasks/delphi_all.yaml`), trained on it. The bench

1. writes training and tuning subjects as `data/ehrseq/train.bin` and `val.bin` in DELPHI, in its format;
2. runs `train.py config/train_delphi_demo.py` there, unless OUT has its checkpoint already. It keeps the weights of its
   best loss on tuning subjects;
3. asks both models about the same prediction times of the same held-out subjects, and compares, for each diagnosis with
   50 events or more, the AUC within sex and age of `ehrseq evaluate`. Its score is the rate of the code after the last
   token by then, ours the risk by the first horizon. Intervals resample subjects, the same for both.

A held-out subject's history enters Delphi as in its own evaluation: sex at birth, diagnoses, and a "no event" token
every five years. A prediction time at which nothing was recorded (a landmark) is one more such token.
"""

import argparse
import itertools
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from ehrsequencing.config import EvaluationConfig
from ehrsequencing.core.arrays import Floats, Floats32, Ints
from ehrsequencing.core.files import write_json
from ehrsequencing.evaluation.outcome_table import FEWEST_EVENTS, OneOutcome, OutcomeRows
from ehrsequencing.metrics.bootstrap import interval_around
from ehrsequencing.prediction.run import Run
from ehrsequencing.records.events import DAY_US

NO_EVENT, FIRST_CODE = 1, 13  # tokens of Delphi: 0 is a pad, 2 and 3 the sexes, 4 to 12 habits
NO_EVENT_DAYS = 5 * 365.25
LAST_NO_EVENT_DAYS = 36_525.0
SEX = {"GENDER//F": 2, "GENDER//M": 3}
BIRTH, DEATH, DIAGNOSES = "MEDS_BIRTH", "MEDS_DEATH", "ICD10//"
AT_ONCE = 32  # subjects
CHECKPOINT = "ckpt.pt"


@dataclass(frozen=True)
class Tokens:
    """A data set as Delphi reads it.

    Attributes:
        subject: (n,) of each token.
        days: (n,) age.
        token: (n,) number; sorted by subject, age and number.
        number: Code → token.
        birth_us: Subject → microseconds since 1970.
        split: Subject → `train`, `tuning` or `held_out`.
    """

    subject: Ints
    days: Ints
    token: Ints
    number: Mapping[str, int]
    birth_us: Mapping[int, int]
    split: Mapping[int, str]

    @classmethod
    def of(cls, data: Path) -> "Tokens":
        """Of a MEDS folder whose subjects have sex, birth, diagnoses and death."""
        rows = pa.concat_tables(
            [pq.read_table(path) for path in sorted((data / "data").rglob("*.parquet"))]
        )
        code = np.array(rows["code"].to_pylist(), dtype=object)
        subject = rows["subject_id"].to_numpy()
        time_us = (
            rows["time"].cast(pa.timestamp("us")).cast(pa.int64()).to_numpy(zero_copy_only=False)
        )
        names = sorted({name for name in code.tolist() if name.startswith(DIAGNOSES)})
        number = {
            **SEX,
            **{name: FIRST_CODE + k for k, name in enumerate(names)},
            DEATH: FIRST_CODE + len(names),
        }
        born = code == BIRTH
        birth_us = dict(
            zip(subject[born].tolist(), time_us[born].astype(np.int64).tolist(), strict=True)
        )
        token = np.array([number.get(name, 0) for name in code.tolist()])
        birth = np.array([birth_us[one] for one in subject.tolist()])
        days = np.where(token < FIRST_CODE, 0, (np.nan_to_num(time_us) - birth) // DAY_US).astype(
            np.int64
        )
        kept = np.flatnonzero(token)
        order = kept[np.lexsort((token[kept], days[kept], subject[kept]))]
        splits = pq.read_table(data / "metadata" / "subject_splits.parquet").to_pydict()
        split = dict(zip(splits["subject_id"], splits["split"], strict=True))
        return cls(subject[order], days[order], token[order], number, birth_us, split)

    @property
    def size(self) -> int:
        """Of the vocabulary."""
        return max(self.number.values()) + 1

    def write(self, path: Path, split: str) -> None:
        """Write a split in Delphi's format: (n, 3) uint32 of subject, age in days, and token − 1."""
        own = np.array([self.split[one] == split for one in self.subject.tolist()])
        path.parent.mkdir(parents=True, exist_ok=True)
        np.stack([self.subject, self.days, self.token - 1], axis=1)[own].astype(np.uint32).tofile(
            path
        )


def train(delphi: Path, tokens: Tokens, out: Path, *, device: str) -> None:
    """Run Delphi's training with the settings of its demonstration."""
    for name, split in (("train.bin", "train"), ("val.bin", "tuning")):
        tokens.write(delphi / "data" / "ehrseq" / name, split)
    told = {
        "dataset": "ehrseq",
        "vocab_size": tokens.size,
        "out_dir": out.resolve(),
        "device": device,
    }
    command = [sys.executable, "train.py", "config/train_delphi_demo.py"]
    subprocess.run(
        [*command, *(f"--{key}={value}" for key, value in told.items())], cwd=delphi, check=True
    )


def load(delphi: Path, checkpoint: Path) -> torch.nn.Module:
    """Delphi's model with its best weights; the checkpoint may hold tensors and plain values only."""
    sys.path.insert(0, str(delphi))
    from model import Delphi, DelphiConfig  # type: ignore[import-not-found]

    saved = torch.load(checkpoint, map_location="cpu", weights_only=True)
    model = Delphi(DelphiConfig(**saved["model_args"]))
    model.load_state_dict(saved["model"])
    return model.eval()  # type: ignore[no-any-return]


def log_rates(
    model: torch.nn.Module, tokens: Tokens, *, subject: Ints, days: Floats, wanted: Ints
) -> Floats32:
    """Delphi's log rates per day (R, C) of some tokens, after what was known at each prediction time.

    Args:
        model: Delphi.
        tokens: The data.
        subject: (R,) the subject of each prediction time; rows of one subject are neighbours.
        days: (R,) age.
        wanted: (C,) tokens.
    """
    out = np.zeros((len(subject), len(wanted)), dtype=np.float32)
    people, start = np.unique(subject, return_index=True)
    bounds = np.r_[np.sort(start), len(subject)]
    groups = [np.arange(a, b) for a, b in itertools.pairwise(bounds.tolist())]
    assert len(people) == len(groups)
    for low in range(0, len(groups), AT_ONCE):
        chunk = groups[low : low + AT_ONCE]
        lines = [sequence(tokens, int(subject[rows[0]]), days[rows]) for rows in chunk]
        longest = max(len(line[0]) for line in lines)
        token = torch.zeros(len(lines), longest, dtype=torch.int64)
        age = torch.full((len(lines), longest), -10_000.0)
        for k, (own, own_days) in enumerate(lines):  # pads come first, as in its batches
            token[k, longest - len(own) :] = torch.from_numpy(own)
            age[k, longest - len(own) :] = torch.from_numpy(own_days.astype(np.float32))
        with torch.no_grad():
            logits = model(token, age)[0][..., torch.from_numpy(wanted)].numpy()
        for k, rows in enumerate(chunk):
            own_days = lines[k][1]
            last = np.searchsorted(own_days, days[rows], side="right") - 1
            out[rows] = logits[k, longest - len(own_days) + last]
    return out


def sequence(tokens: Tokens, subject: int, asked_days: Floats) -> tuple[Ints, Floats]:
    """A subject's tokens and ages until the last prediction time, with a token of no event where nothing else is."""
    low, high = np.searchsorted(tokens.subject, [subject, subject + 1])
    days, token = tokens.days[low:high].astype(np.float64), tokens.token[low:high]
    free = np.arange(0, LAST_NO_EVENT_DAYS, NO_EVENT_DAYS) + 1
    free = np.setdiff1d(np.r_[free, asked_days], days)
    days, token = np.r_[days, free], np.r_[token, np.full(len(free), NO_EVENT)]
    order = np.argsort(days, kind="stable")
    order = order[days[order] <= asked_days.max()]
    return token[order], days[order]


def compare(
    run: Run, rates: Floats32, columns: Mapping[str, int], settings: EvaluationConfig
) -> dict[str, Any]:
    """Both models on every outcome with enough events.

    Args:
        run: Ours.
        rates: (R, C) Delphi's scores at the prediction times of the held-out subjects.
        columns: Code → its place among these scores.
        settings: Of the bootstrap.
    """
    rows = OutcomeRows(run, run.prepared(), "held_out", settings)
    found: list[tuple[OneOutcome, Floats]] = []
    for one in rows.outcomes():
        if one.events >= FEWEST_EVENTS:
            theirs = rows.auc(one.number, rates[:, columns[run.outcomes[one.number]]])
            found.append((one, theirs.mean))
    ours, delphi = (
        np.stack(part)
        for part in ([one.auc.mean for one, _ in found], [other for _, other in found])
    )
    medians = {"ours": np.nanmedian(ours, axis=0), "Delphi": np.nanmedian(delphi, axis=0)}
    return {
        "outcomes": len(found), "subjects": len(rows.subject_ids),
        "median_auc": {name: told(values) for name, values in medians.items()},
        "ours_minus_delphi": told(medians["ours"] - medians["Delphi"]),
        "mean_difference": told(np.nanmean(ours - delphi, axis=0)),
        "ours_is_higher": float(np.mean(ours[:, 0] > delphi[:, 0])),
        "each": [
            {"code": run.outcomes[one.number], "events": one.events, "ours": round(float(one.auc.mean[0]), 4),
             "Delphi": round(float(other[0]), 4)}
            for one, other in found
        ],
    }  # fmt: skip


def told(values: Floats) -> dict[str, float]:
    """The whole's value, and its interval over the resamples."""
    low, high = interval_around(values[0], values[1:])
    return {
        "value": round(float(values[0]), 4),
        "low": round(float(low), 4),
        "high": round(float(high), 4),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Train Delphi where it is not there, compare, print, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("delphi", type=Path, help="clone of Delphi's repository")
    parser.add_argument("data", type=Path, help="delphi_sim_meds")
    parser.add_argument("run", type=Path, help="run of ours")
    parser.add_argument("out", type=Path, help="folder for Delphi's checkpoint and delphi.json")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--checkpoint", default=CHECKPOINT, help="name of the checkpoint in OUT")
    asked = parser.parse_args(arguments)
    tokens, run = Tokens.of(asked.data), Run(asked.run)
    if not (asked.out / asked.checkpoint).is_file():
        train(asked.delphi, tokens, asked.out, device=asked.device)
    model = load(asked.delphi, asked.out / asked.checkpoint)
    records = run.prepared().outcome_records(run.task.name, "held_out")
    subject = records.timelines.subject_id[records.rows.subject]
    birth = np.array([tokens.birth_us[one] for one in subject.tolist()])
    days = (np.asarray(records.rows.prediction_us) - birth) / DAY_US
    wanted = np.array([tokens.number[code] for code in run.outcomes])
    rates = log_rates(model, tokens, subject=subject, days=days, wanted=wanted)
    found = compare(
        run, rates, {code: k for k, code in enumerate(run.outcomes)}, EvaluationConfig()
    )
    print(json.dumps({name: value for name, value in found.items() if name != "each"}, indent=1))
    write_json(asked.out / "delphi.json", found)


if __name__ == "__main__":
    main()
