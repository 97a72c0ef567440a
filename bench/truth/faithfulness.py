"""Do explanations tell the truth? `python -m bench faithfulness RUN DATA --out faithfulness.json`.

DATA is a simulated data set and RUN a run trained on it. At the last prediction time of some held-out subjects:

- **Truth.** Each code's true contribution to the outcome's log hazard (`bench/truth/_contributions.py`), beside what
  deletion says of the model's log cumulative hazard by 30 days. Pairs are struck as pairs, beside each half alone,
  the interaction (sum of the halves − both), and a swap that turns a match into a mismatch or back.
- **Controls.** The same correlations for a network with random weights, and for one trained on shuffled labels.
"""

import argparse
import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.truth._contributions import Contribution, Contributions
from bench.truth._shuffled import SMALL, ShuffledLabels
from ehrsequencing.config import load_study
from ehrsequencing.core.files import read_json, write_json
from ehrsequencing.explain import Edit, Question, SubjectRecord, subject_records
from ehrsequencing.explain.record import kept_rows
from ehrsequencing.models.base import SurvivalModel
from ehrsequencing.models.ensemble import build_model
from ehrsequencing.prediction.predict import NewRecords
from ehrsequencing.prediction.run import Run
from ehrsequencing.predictors.network import Network
from ehrsequencing.predictors.predictor import Predictor
from ehrsequencing.records.events import DAY_US
from ehrsequencing.simulate import SimulationConfig
from ehrsequencing.simulate.dataset import SPLITS, split_of
from ehrsequencing.training.plan import Plan
from ehrsequencing.training.train import Trainer

EARLY_DAYS = 30.0  # contributions are those of the prediction time; they are sought in the hazard soon after it


@dataclass(frozen=True)
class Other(Question):
    """The same question, answered by another network."""

    network: SurvivalModel | None = None

    @property
    def predictor(self) -> Predictor:
        """The network alone."""
        assert self.network is not None
        return Network(self.network, self.run.code_types)


def held_out(records: NewRecords, wanted: int) -> list[SubjectRecord]:
    """Held-out subjects that were asked at least twice, the first so many."""
    found = list[SubjectRecord]()
    for record in subject_records(records):
        if (
            SPLITS[int(split_of(np.array([record.subject_id]))[0])] == "held_out"
            and len(record.moments) > 1
        ):
            found.append(record)
        if len(found) == wanted:
            break
    return found


def true_contributions(truth: Contributions, record: SubjectRecord) -> list[Contribution]:
    """Of what was known at the last prediction time."""
    known = int(record.moments.visits_before[-1])
    day = record.record.visits.start_us[:known] // DAY_US
    return truth.of(record.codes[:known], record.values[:known], day.tolist())


def edits_of(one: Contribution) -> list[Edit]:
    """Of a code: struck everywhere. Of a pair: both halves in its visit, then each half alone."""
    if one.visit is None:
        return [Edit(codes=one.codes)]
    both = [(one.visit, code) for code in one.codes]
    return [Edit(code_at=both), *(Edit(code_at=[half]) for half in both)]


def effects(
    question: Question, people: list[SubjectRecord], truth: Contributions
) -> list[dict[str, Any]]:
    """One row for each contribution: the true one, and what deletion says of it."""
    rows = []
    for record in people:
        listed = true_contributions(truth, record)
        edits = [edits_of(one) for one in listed]
        kept = kept_rows(record, [Edit(), *(edit for own in edits for edit in own)])
        log_hazard = question.of_copies(record, kept, rows=[-1])[:, 0, 1]
        change, place = log_hazard[0] - log_hazard[1:], 0
        for one, own in zip(listed, edits, strict=True):
            said = change[place : place + len(own)]
            place += len(own)
            rows.append(
                {
                    "mechanism": one.mechanism,
                    "truth": one.log_hazard,
                    "said": float(said[0]),
                    "half": float(np.mean(said[1:])) if len(said) > 1 else None,
                    "interaction": float(said[1:].sum() - said[0]) if len(said) > 1 else None,
                    **swapped(question, record, one, truth, float(log_hazard[0])),
                }
            )
    return rows


def swapped(
    question: Question, record: SubjectRecord, one: Contribution, truth: Contributions, now: float
) -> dict[str, float | None]:
    """What happens when a pair's second half is exchanged, so that a match becomes a mismatch or the reverse.

    Such a visit is like those that the model has seen, which a visit without a pair is not. It tells whether the model
    has learned the pair.
    """
    nothing: dict[str, float | None] = {"swap": None, "swap_truth": None}
    if one.visit is None:
        return nothing
    first, second = (int(code[-2:]) for code in one.codes)
    other = f"RX//B{(first + (first == second)) % truth.config.pairs:02d}"
    events, visits = record.record.events, record.record.visits
    if other not in record.code_number:
        return nothing
    own = visits.event[visits.visit == one.visit]
    code = events.code.copy()
    code[own[events.code[own] == record.code_number[one.codes[1]]]] = record.code_number[other]
    changed = replace(record, record=replace(record.record, events=replace(events, code=code)))
    then = question.of_copies(changed, [np.ones(len(events), dtype=bool)], rows=[-1])[0, 0, 1]
    (same,) = (
        c
        for c in true_contributions(truth, changed)
        if c.visit == one.visit and c.mechanism == "pair"
    )
    return {"swap": now - float(then), "swap_truth": one.log_hazard - same.log_hazard}


def correlations(rows: list[dict[str, Any]]) -> dict[str, float | None]:
    """Pearson's correlation of what is said with the truth: of all, by mechanism, of half pairs, and of swaps."""

    def r(chosen: list[dict[str, Any]], said: str = "said") -> float | None:
        pairs = np.array([(row["truth"], row[said]) for row in chosen]).reshape(-1, 2)
        varies = len(pairs) > 2 and bool((pairs.std(axis=0) > 1e-12).all())
        return float(np.corrcoef(pairs.T)[0, 1]) if varies else None

    known = [row for row in rows if row["mechanism"] != "background"]
    out = {"all codes": r(rows), "codes with an effect": r(known)}
    for name in ("pair", "chronic", "lab", "decay"):
        out[name] = r([row for row in rows if row["mechanism"] == name])
    pairs = [row for row in rows if row["half"] is not None]
    swaps = [
        {"truth": row["swap_truth"], "said": row["swap"]} for row in rows if row["swap"] is not None
    ]
    return out | {
        "pair, by striking one half": r(pairs, "half"),
        "pair, by interaction": r(pairs, "interaction"),
        "pair, by swapping one half": r(swaps),
    }


def random_network(run: Run) -> SurvivalModel:
    """The run's architecture with random weights."""
    torch.manual_seed(0)
    single = run.model.config.model_copy(update={"members": 1})
    return build_model(single).eval()


def shuffled_network(run: Run) -> SurvivalModel:
    """A small network trained on labels that were dealt out among the subjects."""
    shuffled = ShuffledLabels(run.prepared(), seed=0)
    with tempfile.TemporaryDirectory() as folder:
        plan = Plan.of(shuffled, run.task.name, load_study(None, SMALL), as_given=True)
        trainer = Trainer(plan)
        trainer.train(Path(folder) / "run")
        return trainer.training.averaged.cpu().eval()


def measure(
    run: Run, data: Path, *, subjects: int, controls: Sequence[str], say: Callable[[str], Any]
) -> dict[str, Any]:
    """All numbers of one run."""
    settings = read_json(data / "manifest.json")["settings"]
    truth = Contributions(SimulationConfig.model_validate(settings))
    people = held_out(NewRecords(run, data), subjects)
    early = Question.for_run(run, horizon_days=EARLY_DAYS)
    out: dict[str, Any] = {"subjects": len(people)}
    rows = effects(early, people, truth)
    out["effects"] = len(rows)
    out["correlation"] = {"trained": correlations(rows)}
    say(json.dumps(out))
    networks = {"random weights": random_network, "shuffled labels": shuffled_network}
    for name in controls:
        other = Other(run, early.cause, early.horizon_days, network=networks[name](run))
        out["correlation"][name] = correlations(effects(other, people, truth))
        say(json.dumps({name: out["correlation"][name]}))
    return out


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--subjects", type=int, default=200)
    parser.add_argument("--controls", nargs="*", default=["random weights", "shuffled labels"])
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()

    def say(text: str) -> None:
        print(text, flush=True)

    found = measure(
        Run(arguments.run),
        arguments.data,
        subjects=arguments.subjects,
        controls=arguments.controls,
        say=say,
    )
    print(json.dumps(found, indent=1))
    if arguments.out is not None:
        write_json(arguments.out, found)


if __name__ == "__main__":
    main()
