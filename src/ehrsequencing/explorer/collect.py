"""A run and records → everything that an explorer shows."""

from collections.abc import Callable
from dataclasses import dataclass

from ehrsequencing.core.arrays import Floats, Floats32
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.explorer.codes import (
    Removals,
    ShownCodes,
    removed_risks,
    shown_codes,
    single_removals,
)
from ehrsequencing.explorer.patients import (
    ExplorerSettings,
    Gathered,
    curve_days,
    gather,
)
from ehrsequencing.prediction.predict import NewRecords, RiskPredictor, unanswered
from ehrsequencing.prediction.run import Run
from ehrsequencing.records.codes import read_descriptions

Tick = Callable[..., None]  # called with pieces done, pieces in all, and what comes next
_BYTES = 2 * 0.6 * 4 / 3  # of one answer in the file: 16 bits, deflated, in base64
_OTHER_BYTES = 0.35  # share of the file's limit that is left for everything else


@dataclass(frozen=True)
class Explorer:
    """Everything that an explorer shows of a run and a data set; `page` makes the page of it.

    Attributes:
        run: The run.
        settings: What is shown, and what is hidden.
        gathered: The patients.
        shown: What the page calls their codes.
        curve_days: (G,) days of the curves.
        removals: The edits that were answered in advance; None where there are none.
        removed: (answers, causes, horizons) their risks.
        latest_only: Whether they are answered at each patient's latest prediction time only.
    """

    run: Run
    settings: ExplorerSettings
    gathered: Gathered
    shown: ShownCodes
    curve_days: Floats
    removals: Removals | None = None
    removed: Floats32 | None = None
    latest_only: bool = False


def collect(
    records: NewRecords,
    settings: ExplorerSettings | None = None,
    *,
    force: bool = False,
    progress: Tick | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Explorer:
    """Everything that an explorer shows: risks at every prediction time, records, and single removals.

    Args:
        records: A run, and the data set that it is asked about.
        settings: What is shown, and what is hidden.
        force: Whether to answer even if hardly any code of the data is known to the run.
        progress: Called with pieces done, pieces in all, and what comes next.
        say: Called with what a reader should know.

    Raises:
        EhrseqError: Nobody has a prediction time, or the run has no risk curves.
    """
    settings, run = settings or ExplorerSettings(), records.run
    predictor = RiskPredictor(run)
    if run.is_visit_head:
        raise EhrseqError(
            "the explorer needs risk curves, and the visit head has none",
            where="model.head",
            fix="train with model.head=horizon",
        )
    say(records.require_known(force=force))
    tick = progress or (lambda *_: None)
    tick(0, 1, "predicting")
    days = curve_days(tuple(run.task.horizons), start_days=predictor.start_days)
    gathered = gather(records, predictor, days, settings)
    patients = gathered.patients
    for text in unanswered(records, answered=gathered.in_all):
        say(text)
    if len(patients) < gathered.in_all:
        say(
            f"{len(patients):,} of {gathered.in_all:,} patients, drawn at random: --subjects shows more"
        )
    words = read_descriptions(records.data)
    shown = shown_codes(patients, gathered.codes, run.vocabulary, words, fewest=settings.fewest)
    if not settings.what_if:
        return Explorer(run, settings, gathered, shown, days)
    removals = single_removals(patients, shown, latest_only=False)
    per_answer = len(predictor.causes) * len(run.task.horizons) * _BYTES
    latest_only = removals.answers * per_answer > (1 - _OTHER_BYTES) * settings.megabytes * 1e6
    if latest_only:
        removals = single_removals(patients, shown, latest_only=True)
        say(
            "what-if answers are those of each patient's latest prediction: at all of them the file would be too large"
        )
    tick(0, len(patients), "striking codes and visits")
    removed = removed_risks(records, gathered, shown, removals, progress=progress)
    return Explorer(run, settings, gathered, shown, days, removals, removed, latest_only)
