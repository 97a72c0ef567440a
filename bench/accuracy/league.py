"""The league: our models and foreign ones on the same tasks: `python -m bench league DATA OUT [TASK …] [options]`.

Every model answers the same prediction times of the same held-out subjects. Foreign models run by their own code, in
their own Python (`--python`, may be repeated), on one feature table (`_league_features.py`); what they get and give is
in `contenders/exchange.py`. Each writes a file of predictions, and `ehrseq score`'s function evaluates all files of a
division together: the same metrics on the same rows. Intervals of differences are over divisions. The strongest
rival of a task is the foreign model with the lowest likelihood loss on tuning subjects; held-out subjects choose
nothing. Ours are one training: the blend, and by themselves its network, its trees with Cox, its trees, its Cox.

A finished cell (a task, a division, a model) is kept in OUT and an interrupted training goes on, so `--jobs-seconds`
may end it at any moment and the same command continues. `--markdown` prints the tables of what is there, and `--page`
writes them between the markers of bench/results/league.md.

Needs `pip install ".[league]"` in some environment for the foreign models, and one of its own for PyHealth. A model
whose package no `--python` has stays "not run".
"""

import argparse
import re
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from bench.accuracy._league_tables import Scored, page_text, score_place
from bench.accuracy._league_tasks import (
    FIRST_SEED,
    FOREIGN,
    TASKS,
    LandmarkRows,
    Place,
    knots_days,
    python_with,
    run_foreign,
    write_question,
)
from bench.accuracy.contenders.exchange import (
    FACTS,
    LEAST_SURVIVAL,
    PREDICTIONS,
    QUESTION,
    SPLITS,
    nll_through,
)
from bench.measure import ROOT
from ehrsequencing.core.files import write_json
from ehrsequencing.core.signals import keep_freed_memory
from ehrsequencing.core.version import __version__
from ehrsequencing.prediction.prediction_file import PredictionWriter, Risks
from ehrsequencing.prediction.run import Run
from ehrsequencing.predictors.fit import fit_last_step
from ehrsequencing.predictors.predictor import Predictor
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.training.fit import fit
from ehrsequencing.training.plan import Plan

PAGE = ROOT / "bench" / "results" / "league.md"
BEGIN, END = "<!-- league: begin -->", "<!-- league: end -->"


class TimeUp(BaseException):
    """The time of `--jobs-seconds` is over."""


def run_ours(place: Place, prepared: Prepared) -> None:
    """Train our blend, as far as it is not there, and write the predictions of it and of its parts at the landmarks.

    Trees and Cox are recalibrated by tuning subjects, together and each alone, as where no network is trained.
    """
    folder, task = place.folder / "blend" / "run", place.question
    torch.set_num_threads(1)  # so small a model loses much by a second thread on a busy machine
    started, cpu, resumed = time.monotonic(), time.process_time(), folder.exists()
    plan = Plan.of(prepared, task.name, place.study(f"training.seed={place.seed}"))
    fit(plan, folder, resume=True)
    spent = {
        "seconds": round(time.monotonic() - started, 1),
        # what came before is not known
        "cpu_seconds": None if resumed else round(time.process_time() - cpu, 1),
    }
    run, data = Run(folder), plan.fitting_data()
    assert run.blend is not None
    alone = {
        "stacked": run.blend.stacked,
        "trees": run.blend.stacked.parts[0],
        "landmark_cox": run.blend.stacked.parts[1],
    }
    steps = {
        name: fit_last_step(model.all_hazards(data.tuning), data) for name, model in alone.items()
    }
    models: dict[str, Predictor] = {"blend": run.predictor, "network": run.blend.parts[0]}
    models |= {
        name: model
        if (step := steps[name]) is None
        else model.recalibrated(step.intercept, step.slope)
        for name, model in alone.items()
    }
    for name, model in models.items():
        (place.folder / name).mkdir(exist_ok=True)
        write_answers(place, prepared, name, model, spent if name == "blend" else {})


def write_answers(
    place: Place, prepared: Prepared, name: str, model: Predictor, spent: Mapping[str, float | None]
) -> None:
    """One model's predictions at the landmarks of tuning and held-out subjects, and its facts."""
    folder, task = place.folder / name, place.question
    rows = {split: LandmarkRows.of(prepared, task, split) for split in SPLITS}
    train = rows["train"]
    days = knots_days(train.column("duration_days"), train.column("cause"), task.horizons)
    loss = np.nan
    file = PredictionWriter(task.causes, days.tolist(), task.blanking, 0)
    with file.opened(folder / PREDICTIONS, {}, overwrite=False):
        for split in ("tuning", "held_out"):
            asked = rows[split]
            # as of foreign models: nobody's risks sum to 1
            risk = (1 - LEAST_SURVIVAL) * model.risk(asked.records, days)[asked.chosen]
            at = asked.column("prediction_us")
            file.write(Risks(asked.subject_id, at, risk.astype(np.float32)))
            if split == "tuning":
                own = asked.column("duration_days"), asked.column("cause").astype(np.int64)
                loss = nll_through(risk.astype(np.float64), days, *own)
    facts = {
        "trials": 1,
        "of_trials": 1,
        "chosen": [*place.one.settings, *place.more],
        "tuning_nll": loss,
        "is_curve": True,
        "seconds": None,
        "cpu_seconds": None,  # of the parts: they come with the blend
        "versions": {"ehrsequencing": __version__},
        "subjects": {split: len(np.unique(one.subject_id)) for split, one in rows.items()},
    }
    write_json(folder / FACTS, facts | dict(spent))


def run_cell(place: Place, model: str, pythons: Sequence[Path], *, trial_seconds: float) -> None:
    """One model on one division of one task, as far as it is not there."""
    folder = place.folder / model
    if (folder / FACTS).is_file():
        return
    python = None
    if model in FOREIGN:
        python = python_with(FOREIGN[model].imports, pythons)
        if python is None:
            say(place, model, f"not run: no --python has {FOREIGN[model].imports}")
            return
    started = time.monotonic()
    say(place, model, "started")
    prepared = place.prepared()
    if python is None:
        run_ours(place, prepared)
    else:
        if not (folder / QUESTION).is_file():
            write_question(place, prepared, folder, with_visits=model == "pyhealth")
        try:
            run_foreign(model, python, folder, seconds=trial_seconds)
        except RuntimeError as error:
            say(place, model, f"failed: {error}")
            return
    say(place, model, f"done in {time.monotonic() - started:.0f} s")


def say(place: Place, model: str, what: str) -> None:
    print(
        f"{time.strftime('%H:%M:%S')} {place.task} seed {place.seed} {model}: {what}",
        file=sys.stderr,
        flush=True,
    )


def work(
    places: Sequence[Place],
    models: Sequence[str],
    pythons: Sequence[Path],
    *,
    jobs_seconds: float | None,
    trial_seconds: float,
) -> None:
    """Run what is missing: the first model of every task before the second, until all is done or the time is up."""

    def stop(*_: object) -> None:
        raise TimeUp

    if jobs_seconds is not None:
        signal.signal(signal.SIGALRM, stop)
        signal.setitimer(signal.ITIMER_REAL, max(jobs_seconds, 0.001))
    try:
        for model in models:
            for place in places:
                run_cell(place, model, pythons, trial_seconds=trial_seconds)
    except TimeUp:
        print("the time is up; the same command goes on", file=sys.stderr, flush=True)
    finally:
        if jobs_seconds is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)


def scored(places: Sequence[Place]) -> list[Scored]:
    """Every division of every task, with what has been scored of it; scores are kept in OUT.

    A division whose files cannot be scored together is told on the standard error, and stands as not run.
    """
    each = [score_place(place) for place in places]
    for one in each:
        if one.failure:
            say(one.place, "score", f"failed: {one.failure}")
    return each


def write_page(path: Path, text: str) -> None:
    """Replace what is between the markers of the page.

    Raises:
        SystemExit: The page has no markers.
    """
    page = path.read_text(encoding="utf-8")
    if page.count(BEGIN) != 1 or page.count(END) != 1:
        raise SystemExit(f"{path} lacks the markers {BEGIN} and {END}")
    between = re.compile(f"(?<={re.escape(BEGIN)}).*(?={re.escape(END)})", re.DOTALL)
    path.write_text(between.sub(lambda _: f"\n{text}\n", page), encoding="utf-8")


def main() -> None:
    """Run what is missing, score, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, help="folder that holds pbc2_meds, nafld_meds …")
    parser.add_argument("out", type=Path)
    parser.add_argument(
        "words", nargs="*", default=[], metavar="TASK|key=value", help=f"tasks: {', '.join(TASKS)}"
    )
    parser.add_argument("--models", nargs="+", choices=[*FOREIGN, "blend"], help="default: all")
    parser.add_argument("--splits", type=int, default=1, help="divisions of each task")
    parser.add_argument("--subjects", type=int, default=3000, help="of each simulated world")
    parser.add_argument(
        "--python", type=Path, action="append", default=[], help="a Python with foreign packages"
    )
    parser.add_argument(
        "--jobs-seconds", type=float, help="stop after so long; 0 only scores and prints"
    )
    parser.add_argument(
        "--trial-seconds",
        type=float,
        default=300.0,
        help="of a foreign model: no trial starts later",
    )
    parser.add_argument(
        "--markdown", action="store_true", help="run nothing: only the tables of what is there"
    )
    parser.add_argument(
        "--page", action="store_true", help="also write the tables into bench/results/league.md"
    )
    arguments = parser.parse_intermixed_args()
    settings = tuple(word for word in arguments.words if "=" in word)
    names = [word for word in arguments.words if "=" not in word] or list(TASKS)
    if unknown := [name for name in names if name not in TASKS]:
        parser.error(f"unknown task {unknown[0]}: one of {', '.join(TASKS)}")
    keep_freed_memory()
    # Absolute, but not resolved: the Python of an environment is a link, and knows its packages by where the link is.
    pythons = [path.absolute() for path in arguments.python]
    places = [
        Place(
            name,
            arguments.data.resolve(),
            arguments.out.resolve(),
            FIRST_SEED + number,
            subjects=arguments.subjects,
            more=settings,
        )
        for name in names
        for number in range(arguments.splits)
    ]
    models = arguments.models or [*FOREIGN, "blend"]
    if not arguments.markdown and arguments.jobs_seconds != 0:
        work(
            places,
            models,
            pythons,
            jobs_seconds=arguments.jobs_seconds,
            trial_seconds=arguments.trial_seconds,
        )
    text = page_text(scored(places), date=time.strftime("%-d %B %Y"))
    print(text)
    if arguments.page:
        write_page(PAGE, text)


if __name__ == "__main__":
    main()
