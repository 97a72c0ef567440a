"""Does a band hold the true risk? `python -m bench coverage OUT [--subjects 500 2000 8000] [--seeds 1]`.

Simulates the default world (with 512 simulated futures in the truth), trains the default model, and asks at every
held-out prediction time whether the true risk of the outcome lies in a band of nominally 90 %. Three kinds of band:

- `members`: `training.members` networks of other seeds beside the same trees and Cox; from the least to the greatest.
- `half-samples`: the whole training anew on half of the training and half of the tuning people, drawn without
  replacement, so that the variance of the fits is about that of a fit to all (Politis and Romano 1994).
- `folds`: trees and Cox without each of five folds of people, with the jackknife's factor; there is no network.

The last two are symmetric around the answer, on the scale of log(−log(1 − risk)):

    g(R̂) ± 1.645 sd      half-samples: sd² = mean of (g_m − ḡ)² · M / (M − 1)      folds: sd² = 4/5 · Σ_j (g_j − ḡ)²

Beside the share that is held (standard error over people) stand the root mean squared distance of the answer from the
truth on that scale, the noise of the truth left in, and the root mean square of the band's sd: a band whose sd is
smaller than the distance says nothing of what the model cannot learn from so many people. Finished trainings are kept.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np

from bench.measure import ehrseq
from ehrsequencing.config import load_study, load_task
from ehrsequencing.core.arrays import Bools, Floats, Ints
from ehrsequencing.evaluation.oracle import Truth
from ehrsequencing.metrics.bootstrap import mean_by_subject
from ehrsequencing.models.ensemble import member_band
from ehrsequencing.prediction.run import Run
from ehrsequencing.predictors.blend import Blend
from ehrsequencing.predictors.boosted import BoostedVisits
from ehrsequencing.predictors.landmark_cox import LandmarkCox
from ehrsequencing.predictors.stack import FOLDS, folds_of
from ehrsequencing.records.hazards import cumulative_incidence
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.timelines import TaskRecords
from ehrsequencing.training.fit import fit
from ehrsequencing.training.plan import Plan

WORLD = ("truth_futures=512",)
HORIZONS_DAYS = (365.25, 730.5)
MEMBERS, HALVES = 5, 8
Z = 1.645


def scale(risk: Floats) -> Floats:
    """Complementary log-log of a risk: log(−log(1 − risk))."""
    return np.log(-np.log1p(-np.clip(risk, 1e-6, 1 - 1e-6)))


def of_outcome(risk: Floats) -> Floats:
    """(…, R, H) of (…, R, causes, H)."""
    return np.asarray(risk[..., 0, :])


def halves(records: TaskRecords, seed: int) -> TaskRecords:
    """Half of the people."""
    count = len(records.timelines)
    drawn = np.random.default_rng([seed, count]).permutation(count)[: count // 2]
    return records.take(np.sort(drawn))


def without_folds(plan: Plan, stacked: Blend, held_out: TaskRecords) -> Floats:
    """(5, R, H) risks of trees and Cox, each fitted without a fold, with the weights of all."""
    data, out = plan.fitting_data(), []
    counts = np.diff(plan.train.rows.row_offsets)
    for fold in folds_of(counts, folds=FOLDS, seed=data.seed):
        part = data.without(fold)
        one = Blend([BoostedVisits.fit(part), LandmarkCox(part)], stacked.weights)
        out.append(of_outcome(one.risk(held_out, HORIZONS_DAYS)))
    return np.stack(out)


def line(name: str, held: Bools, far: Floats, sd: Floats, subject: Ints) -> str:
    """One row of the table."""
    share, error = mean_by_subject(held.astype(float), subject)
    numbers = f"{share:.3f} ({error:.3f}) | {np.sqrt(np.mean(far**2)):.3f} | {np.sqrt(np.mean(sd**2)):.3f}"
    return f"| {name} | {numbers} |"


def judged(out: Path, subjects: int, seed: int) -> None:
    """Simulate, train, print a line for each band and horizon."""
    folder = out / f"{subjects}-{seed}"
    data, prepared = folder / "data", folder / "prepared"
    if not (data / "task.yaml").is_file():
        ehrseq("simulate", data, "--subjects", subjects, "--seed", seed, *WORLD)
    if not (prepared / "manifest.json").is_file():
        ehrseq("prepare", data, "--task", data / "task.yaml", "--out", prepared)
    opened, name = Prepared(prepared), load_task(data / "task.yaml").name
    whole = Plan.of(opened, name, load_study(None, [f"training.members={MEMBERS}"]))
    fit(whole, folder / "members", resume=True)
    alone = Plan.of(opened, name, load_study(None, []))
    for number in range(HALVES):
        half = replace(
            alone, train=halves(alone.train, number), tuning=halves(alone.tuning, number)
        )
        fit(half, folder / f"half-{number}", resume=True)

    held_out = opened.records(name, "held_out")
    truth = Truth.read(data, held_out, causes=alone.task.causes)
    assert truth is not None
    inner = truth.edges_days[1:-1].tolist()
    known = ~np.isnan(truth.hazards).any(axis=(1, 2))
    true = cumulative_incidence(truth.hazards[known], inner, np.array(HORIZONS_DAYS))[:, 0]
    predictor = Run(folder / "members").predictor
    risk, members = (
        of_outcome(each)[..., known, :]
        for each in predictor.risk_of_members(held_out, HORIZONS_DAYS)
    )
    half_risks = np.stack(
        [
            of_outcome(Run(folder / f"half-{n}").predictor.risk(held_out, HORIZONS_DAYS))[known]
            for n in range(HALVES)
        ]
    )
    blend = Run(folder / "members").blend
    assert isinstance(blend, Blend)
    stacked = of_outcome(blend.stacked.risk(held_out, HORIZONS_DAYS))[known]
    folds = without_folds(whole, blend.stacked, held_out)[:, known]
    subject = held_out.rows.subject[known]
    for h, days in enumerate(HORIZONS_DAYS):
        label = f"{subjects:,} | {seed} | {days / 365.25:g} years"
        low, high = member_band(members[..., h])
        far = scale(risk[:, h]) - scale(true[:, h])
        held = (low <= true[:, h]) & (true[:, h] <= high)
        sd = scale(members[..., h]).std(axis=0, ddof=1)
        print(line(f"{label} | members", held, far, sd, subject))
        sd = scale(half_risks[..., h]).std(axis=0, ddof=1)
        print(line(f"{label} | half-samples", np.abs(far) <= Z * sd, far, sd, subject))
        sd = scale(folds[..., h]).std(axis=0) * np.sqrt(FOLDS - 1)
        far = scale(stacked[:, h]) - scale(true[:, h])
        print(line(f"{label} | folds", np.abs(far) <= Z * sd, far, sd, subject), flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--subjects", type=int, nargs="*", default=[500, 2000, 8000])
    parser.add_argument("--seeds", type=int, nargs="*", default=[1])
    arguments = parser.parse_args()
    print("| people | seed | by | band | held | distance | sd |\n" + "|---" * 7 + "|", flush=True)
    for subjects in arguments.subjects:
        for seed in arguments.seeds:
            judged(arguments.out, subjects, seed)


if __name__ == "__main__":
    main()
