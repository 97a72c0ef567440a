"""A trained run in Python: what it is, what it predicts, and its plots."""

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from ehrsequencing.api import paper
from ehrsequencing.api.cox import cox_of_run
from ehrsequencing.api.data import PreparedData, as_settings, meds_folder
from ehrsequencing.api.evaluation import EvaluationResult
from ehrsequencing.api.paper import main_c
from ehrsequencing.api.predictions import (
    attention_table,
    draw_subject,
    opened,
    predictions,
    state_table,
)
from ehrsequencing.api.progress import bar
from ehrsequencing.config import DataConfig
from ehrsequencing.core.elsewhere import Answering, Hinted
from ehrsequencing.core.errors import EhrseqError, refuse_idle
from ehrsequencing.core.files import read_json_lines, refuse_overlap
from ehrsequencing.core.outputs import (
    EXPLORER,
    HISTORY,
    MANIFEST,
    PREPARED,
    is_json_of,
    refuse_existing,
)
from ehrsequencing.core.text import day_of, days_of
from ehrsequencing.evaluation.results import read_result
from ehrsequencing.explain import Question
from ehrsequencing.explain.deletions import OF_PART
from ehrsequencing.explain.tables import explained
from ehrsequencing.explorer import ExplorerSettings, collect, write_page
from ehrsequencing.explorer.codes import Explorer
from ehrsequencing.prediction.journal import Journal
from ehrsequencing.prediction.predict import NewRecords, RiskPredictor
from ehrsequencing.prediction.run import Run, saved_audit
from ehrsequencing.records.encoding import Moment
from ehrsequencing.training.run_folder import NOTHING_LEARNED


class TrainedRun(Hinted, Answering, Run):
    """A trained run: predictions, plots and tables.

    Tables are frames of pandas.

    Example:
        >>> run = eh.load("runs/hf")
        >>> run  # doctest: +ELLIPSIS
        Run('runs/hf': task hf, 294 train / 45 tuning / 61 held-out subjects, C 0... for hf by 2y, ...audit: ...)
        >>> run.task.causes, run.study.model.visit_encoder
        (('hf', 'death'), 'attention')
    """

    # ---- predictions -------------------------------------------------------------------------------------------

    def predict(
        self,
        data: Any,
        *,
        at: str = "last",
        since: str | None = None,
        horizons: Sequence[str | float] | str | None = None,
        force: bool = False,
        journal: str | os.PathLike[str] | None = None,
        key: str | os.PathLike[str] | None = None,
        facts: dict[str, Any] | None = None,
        progress: bool = True,
    ) -> pd.DataFrame:
        """Risks of each cause by each horizon, as a frame with one row a prediction time.

        Args:
            data: A folder of MEDS data, or a frame of MEDS rows; seen in training or not.
            at: As of `ehrseq predict --at`: `last`, `all`, `index`, `every-index`, or a date ("as of that day").
            since: Only people whose index is so recent: `14d` before the data's end or the date of `at`, or a date.
            horizons: As in `["90d", "1y"]`, or numbers of days; default: the task's.
            force: Whether to answer even if hardly any code of the data is known to the run.
            journal: A folder in which these predictions are kept for `monitor`.
            key: Key of the journal; default: the folder's name with `.key`, beside it.
            facts: What the data's own files do not tell, as in `{"extracted": "2026-03-01"}`.
            progress: Whether to show a bar.

        Returns:
            Columns `subject_id`, `prediction_time`, a risk for each cause and horizon, as `hf_90d`, and what the
            moment is: `kind` (`index`, `landmark`, `visit` or `date`), `index_time`, `days_since_index`. An ensemble
            adds the range of its members, `hf_90d_low` and `hf_90d_high`.

        Raises:
            EhrseqError: The data cannot be used, or nobody has a prediction time.

        Example:
            >>> risk = eh.load("runs/hf").predict("meds/", at="last", horizons=["90d", "1y"])
            >>> list(risk.columns[:6])
            ['subject_id', 'prediction_time', 'hf_90d', 'hf_1y', 'death_90d', 'death_1y']
            >>> len(risk), bool((risk["hf_1y"] >= risk["hf_90d"]).all())
            (400, True)
        """
        moment = Moment(str(at), since)  # a wrong one is refused before the model is loaded
        refuse_idle({"key": key}, "without a journal", where="predict", when=journal is None)
        kept = None if journal is None else Journal(Path(journal), key)
        predictor = RiskPredictor(self, None if horizons is None else days_of(horizons))
        with opened(self, data, facts=facts, show=progress) as records:
            table = predictions(
                records, predictor, at=moment, force=force, journal=kept, say=warn_of
            )
        return table.to_pandas()

    def explain(
        self,
        data: Any,
        *,
        subject: int | None = None,
        horizon: str | float | None = None,
        cause: str | None = None,
        kind: str | None = None,
        facts: dict[str, Any] | None = None,
        progress: bool = True,
    ) -> pd.DataFrame:
        """What moves a risk: of one subject at the last prediction time, or of a cohort.

        Effects are differences by deletion: with − without. They are associations in the model, not causes.

        Args:
            data: As in `predict`.
            subject: The `subject_id`; default: mean effects of each code over up to 1,000 subjects.
            horizon: As in `"1y"`, or a number of days; default: the main one of the report.
            cause: Default: the task's first outcome.
            kind: Of a subject: `code`, `visit`, `code in visit` (default), `since the prediction time before`,
                or `all`.
            facts: As in `predict`.
            progress: Whether to show a bar.

        Returns:
            Of a subject: columns `code`, `visit` (its number, from 0), `change_in_risk`, `change_in_log_hazard` and
            others (docs/report.md#explanations), the largest changes first. Of a cohort: columns `code`, `against`,
            `carriers`, `change_in_risk`, `low`, `high` and others, of codes with at least 11 carriers.

        Raises:
            EhrseqError: There is no such subject, kind, cause or horizon, or nobody has a prediction time.

        Example:
            >>> run = eh.load("runs/hf")
            >>> why = run.explain("meds/", subject=1, horizon="1y")
            >>> list(why.columns[:3]), len(why) > 0
            (['code', 'visit', 'time'], True)
        """
        question = Question.for_run(
            self,
            cause=cause,
            horizon_days=None if horizon is None else day_of(horizon),
        )
        with opened(self, data, facts=facts, show=progress, label="explaining") as records:
            explanation = explained(
                question,
                records,
                subject,
                kind=kind if subject is None else kind or "code in visit",
            )
        if explanation.is_part:
            warn_of(f"warning: {OF_PART}")
        table = explanation.table.to_pandas()
        if subject is None or kind == "all":
            return table
        known = table.columns[table.notna().any() | table.empty]
        return table[known.drop("kind")]

    def attention(
        self, data: Any, *, subject: int | None = None, facts: dict[str, Any] | None = None
    ) -> pd.DataFrame:
        """How much each code counts in its visit's vector: the weights of the encoder `attention`.

        The weights of a visit sum to 1. They say what the model looks at within a visit, not what causes the event.

        Args:
            data: As in `predict`.
            subject: One subject; default: all.
            facts: As in `predict`.

        Returns:
            Columns `subject_id`, `time` (start of the visit), `code`, `weight`.

        Raises:
            EhrseqError: The run has another visit encoder, or there is no such subject.

        Example:
            >>> table = eh.load("runs/hf").attention("meds/", subject=1)
            >>> list(table.columns)
            ['subject_id', 'time', 'code', 'weight']
            >>> table.groupby("time")["weight"].sum().round(5).unique().tolist()
            [1.0]
        """
        with opened(self, data, facts=facts, show=False) as records:
            return attention_table(self, records, subject).to_pandas()

    def embed(
        self,
        data: Any,
        *,
        at: str = "last",
        facts: dict[str, Any] | None = None,
        progress: bool = True,
    ) -> pd.DataFrame:
        """Vectors of patients or of visits: the network's state, from which its risks are read.

        Args:
            data: As in `predict`.
            at: A vector of each patient at the `last` prediction time or at a date, or with `all` one of each visit and
                landmark from the index on.
            facts: As in `predict`.
            progress: Whether to show a bar.

        Returns:
            (rows, dim) numbers, the members of an ensemble beside one another; the index is `subject_id` and
            `prediction_time`.

        Raises:
            EhrseqError: The run has no network or the `visit` head, or nobody has a prediction time.

        Example:
            >>> run = eh.load("runs/hf")
            >>> run.embed("meds/").shape, run.embed("meds/", at="all").index.names
            ((400, 16), FrozenList(['subject_id', 'prediction_time']))
        """
        with opened(self, data, facts=facts, show=progress, label="embedding") as records:
            return state_table(self, records, at=at)

    def plot_risk(
        self,
        data: Any,
        *,
        subject: int,
        horizons: Sequence[str | float] | str | None = None,
        facts: dict[str, Any] | None = None,
        ax: "paper.Axes | None" = None,
    ) -> "paper.Axes":
        """One subject's visits, its risk over time, and its risk curves from the last prediction time on.

        Left of the line "today" each step is the risk of the first cause by the last horizon, as predicted then.
        Right of it are the curves of all causes, with the range of the members where the run is an ensemble.

        Args:
            data: As in `predict`.
            subject: The `subject_id`.
            horizons: The last of them is how far the curves go; default: the task's.
            facts: As in `predict`.
            ax: Axes of matplotlib to draw into; default: new ones.

        Returns:
            The axes.

        Raises:
            EhrseqError: There is no such subject, or it has no prediction time.

        Example:
            >>> ax = eh.load("runs/hf").plot_risk("meds/", subject=1, horizons=["2y"])
            >>> ax.get_ylabel()
            'risk by 2y'
        """
        with opened(self, data, facts=facts, show=False) as records:
            days = None if horizons is None else days_of(horizons)
            return draw_subject(self, records, subject, days, ax)

    def explore(
        self,
        data: Any,
        out: str | os.PathLike[str] = "explorer.html",
        *,
        overwrite: bool = False,
        subjects: int = 10_000,
        fewest: int = 11,
        what_if: bool = True,
        megabytes: float = 15.0,
        force: bool = False,
        facts: DataConfig | Mapping[str, Any] | None = None,
        progress: bool = True,
        say: Callable[[str], None] | None = None,
    ) -> Explorer:
        """Write the explorer: one page with the cohort, each patient, and the risk without a code or a visit.

        Args:
            data: As in `predict`.
            out: The file.
            overwrite: Whether an explorer that is there is replaced.
            subjects: At most so many, drawn at random.
            fewest: Codes that fewer patients have are shown as "rare code".
            what_if: Whether each code and each visit is struck in advance.
            megabytes: Above it, what-if answers are those of the latest prediction only.
            force: As in `predict`.
            facts: As in `predict`.
            progress: Whether to show a bar.
            say: Called with remarks; default: warnings are raised as such.

        Returns:
            What the page shows.

        Raises:
            EhrseqError: The data cannot be used, or something else is at `out`.

        Example:
            >>> explorer = eh.load("runs/hf").explore("meds/", "explorer.html", subjects=20, what_if=False)
            >>> len(explorer.gathered.patients)
            20
        """
        page, tell = Path(out), say or warn_of
        settings = ExplorerSettings(
            subjects=subjects,
            fewest=fewest,
            what_if=what_if,
            megabytes=megabytes,
        )
        refuse_existing(page, EXPLORER, overwrite=overwrite)
        with meds_folder(data) as folder, bar("exploring", show=progress) as tick:
            refuse_overlap(page, folder, self.folder)
            records = NewRecords(self, folder, as_settings(DataConfig, facts))
            gathered = collect(records, settings, force=force, progress=tick, say=tell)
            write_page(gathered, page, overwrite=overwrite)
        return gathered

    cox = cox_of_run

    # ---- training and evaluation -------------------------------------------------------------------------------

    @property
    def history(self) -> pd.DataFrame:
        """One row an epoch: training and tuning NLL, whether it was the best, and speed.

        Raises:
            EhrseqError: The file is gone or has been edited.

        Example:
            >>> eh.load("runs/hf").history["epoch"].tolist()
            [1, 2]
        """
        if HISTORY in self.altered:
            raise EhrseqError(
                self.altered[HISTORY], where=str(self.folder / HISTORY), fix="train again"
            )
        rows = read_json_lines(self.folder / HISTORY)
        return pd.DataFrame(rows)

    @property
    def evaluation(self) -> EvaluationResult | None:
        """The evaluation that is in the run's folder; None where there is none, or its file has been edited."""
        result = read_result(self.folder)
        return None if result is None else EvaluationResult(result.content, self.folder, run=self)

    def __repr__(self) -> str:
        parts, c = [f"task {self.task.name}"], "not evaluated yet"
        if (metrics := read_result(self.folder)) is not None:
            counts = metrics["data"]["subjects"].items()
            known = " / ".join(f"{n} {split.replace('_', '-')}" for split, n in counts)
            parts, c = [*parts, f"{known} subjects"], main_c(metrics.content)
            c += "" if metrics["split"] == "held_out" else f" on {metrics['split']}"
        if not self.manifest.get("learned", True):
            c += f", {NOTHING_LEARNED}"
        audit = saved_audit(self.folder)
        verdict = "not made yet"
        if audit is not None:
            verdict = f"{audit['leaks']} leaks found" if audit["leaks"] else "no leak found"
        return f"Run({str(self.folder)!r}: {', '.join([*parts, f'C {c}'])}, audit: {verdict})"


def warn_of(note: str) -> None:
    """Warn where a note is a warning."""
    if note.startswith("warning: "):
        warnings.warn(note.removeprefix("warning: "), stacklevel=4)


def load(path: str | os.PathLike[str]) -> Any:
    """Load a trained run, or open a prepared set.

    Args:
        path: The folder that `ehrseq train` or `ehrsequencing.fit` made, or that `prepare` made.

    Returns:
        The run, with `predict`, `plot_risk`, `explain`, `embed`, `history` and `evaluation`; of a prepared set a
        `PreparedData`, with `batches`.

    Raises:
        EhrseqError: The folder is neither, or not complete.

    Example:
        >>> import ehrsequencing as eh
        >>> run = eh.load("runs/hf")
        >>> risk = run.predict("meds/", at="last", horizons="1y")
        >>> list(risk.columns[:4])
        ['subject_id', 'prediction_time', 'hf_1y', 'death_1y']
    """
    if is_json_of(Path(path) / MANIFEST, PREPARED):
        return PreparedData(Path(path))
    return TrainedRun(os.fspath(path))
