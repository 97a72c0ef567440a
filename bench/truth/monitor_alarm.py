"""False alarms of `ehrseq monitor`, and how soon it finds a change: `python -m bench monitor_alarm`.

People are discharged week by week and followed for half a year. Each is predicted for once a month, by the true hazard
as it was before the change. 400 hospitals of 104 weekly looks each. Beside the alarm stands what is usual: each month,
a z-test of O/E at 5 %, over all rows or with each person once. `--check` ends with status 1 where a goal is missed.
"""

import argparse
import json
from pathlib import Path

import numpy as np

from ehrsequencing.core.arrays import Floats
from ehrsequencing.metrics.hazards import expected_accuracy
from ehrsequencing.metrics.plain import brier, concordance, ipa
from ehrsequencing.metrics.sequential import evidence

WEEKS, FOLLOWED, CHANGE, MONTH = 104, 26, 30, 4
ROWS = 6  # of a person, one a month
HAZARD = 0.00625  # a week, on average; people differ by a gamma distribution
SHAPE = 2.0
RISK = 1 - (1 + HAZARD * FOLLOWED / SHAPE) ** -SHAPE  # by the end of follow-up, on average
# factor of the hazard before and after the change, and the share of events that is recorded after it
WORLDS = {
    "nothing changes": (1.0, 1.0, 1.0),
    "O/E of 1.05 for good": (1.05, 1.05, 1.0),
    "hazards x 1.5 from week 30": (1.0, 1.5, 1.0),
    "hazards x 1.2 from week 30": (1.0, 1.2, 1.0),
    "half of the events not recorded": (1.0, 1.0, 0.5),
}
# share of hospitals with an alarm at 100 and 300 events a year: at most, at least, or not demanded
GOALS = {
    "nothing changes": (0.05, 0.05),
    "O/E of 1.05 for good": (0.05, 0.05),
    "hazards x 1.5 from week 30": (0.80, 0.95),
    "half of the events not recorded": (0.95, 0.95),
}


def hospital(
    rng: np.random.Generator, events_a_year: int, world: tuple[float, float, float]
) -> tuple[Floats, Floats]:
    """Observed and expected events of each week, (2, weeks): once a person, and once a row."""
    before, after, recorded = world
    arriving = rng.poisson(events_a_year / 52 / RISK, WEEKS + FOLLOWED)
    start = np.repeat(np.arange(-FOLLOWED, WEEKS), arriving)[:, None]
    week = np.arange(WEEKS)
    hazard = rng.gamma(SHAPE, HAZARD / SHAPE, start.shape)  # a week
    is_open = (week >= start) & (week < start + FOLLOWED)
    true = hazard * is_open * np.where(week >= CHANGE, after, before)
    until = np.pad(np.cumsum(true, axis=1), ((0, 0), (1, 0)))
    time = rng.exponential(size=start.shape)  # on the scale of the cumulative hazard
    happens = (until[:, :-1] < time) & (time <= until[:, 1:])
    inside = np.clip((time - until[:, :-1]) / np.where(is_open, true, 1.0), 0.0, 1.0)
    expected = hazard * is_open * inside
    seen = happens & ((week < CHANGE) | (rng.random(start.shape) < recorded))
    rows = np.clip((week - start) * ROWS // FOLLOWED + 1, 0, ROWS)  # made by then
    each = (1, rows)
    return (
        np.stack([(seen * one).sum(axis=0) for one in each]).astype(np.float64),
        np.stack([(expected * one).sum(axis=0) for one in each]),
    )


def monthly_test(observed: Floats, expected: Floats) -> bool:
    """Whether O/E differs from 1 at 5 % in any month."""
    o, e = (
        counts[: WEEKS // MONTH * MONTH].reshape(-1, MONTH).sum(axis=1)
        for counts in (observed, expected)
    )
    return bool((np.abs(o - e) > 1.96 * np.sqrt(e)).any())


def accuracy_gap(rng: np.random.Generator, people: int = 500) -> Floats:
    """Expected less realised C, Brier score and IPA by half a year, where nothing has changed."""
    hazard = rng.gamma(SHAPE, HAZARD / SHAPE, people)
    time = rng.exponential(size=people) / hazard
    incidence = -np.expm1(-np.outer(hazard, np.linspace(0, FOLLOWED, 11)[1:]))
    cause = np.where(time <= FOLLOWED, 1, 0)
    time = np.minimum(time, FOLLOWED)
    realised = [
        one(time, cause, incidence[:, -1], horizon=FOLLOWED) for one in (concordance, brier, ipa)
    ]
    return expected_accuracy(incidence)[:, 0] - realised


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=400)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    rng, rows, missed = np.random.default_rng(84), [], []
    print(
        f"{'world':34}{'events a year':>14}{'alarm':>8}{'median weeks':>14}{'monthly':>9}{'of rows':>9}"
    )
    for (name, world), place in ((one, k) for one in WORLDS.items() for k in (0, 1)):
        rate, weeks, naive = (100, 300)[place], [], np.zeros(2)
        for _ in range(options.runs):
            observed, expected = hospital(rng, rate, world)
            week = evidence(observed[:1].T, expected[:1].T, start_every=MONTH).alarm_day()
            weeks.append(np.inf if week is None else week - CHANGE)
            naive += [monthly_test(*one) for one in zip(observed, expected, strict=True)]
        share, median = float(np.isfinite(weeks).mean()), float(np.median(weeks))
        monthly, of_rows = naive / options.runs
        print(
            f"{name:34}{rate:14}{share:8.3f}{median:14.0f}{monthly:9.2f}{of_rows:9.2f}", flush=True
        )
        rows.append(
            {
                "world": name,
                "events_a_year": rate,
                "alarm": share,
                "monthly": monthly,
                "of_rows": of_rows,
            }
        )
        goal = GOALS.get(name)
        if goal and (share > goal[place] if goal[place] < 0.5 else share < goal[place]):
            missed.append(f"{name}, {rate}")
    gap = np.mean([accuracy_gap(rng) for _ in range(options.runs)], axis=0)
    print("expected less realised: C {:+.4f}, Brier {:+.4f}, IPA {:+.4f}".format(*gap))
    if np.abs(gap[0]) > 0.01:
        missed.append("expected C")
    if options.json:
        options.json.write_text(json.dumps({"worlds": rows, "gap": gap.tolist()}))
    if options.check and missed:
        raise SystemExit(f"missed: {'; '.join(missed)}")


if __name__ == "__main__":
    main()
