"""The file of risks with the page and the JSON beside it: who was asked, how they differ, who has the highest risks."""

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ehrsequencing.config import DataConfig, DriftConfig, format_days
from ehrsequencing.core.arrays import Ints, hash_u64
from ehrsequencing.core.file_sets import output_files
from ehrsequencing.core.files import mode_for, sha256, write_bytes, write_json
from ehrsequencing.core.outputs import LIST, PREDICTIONS
from ehrsequencing.core.version import __version__
from ehrsequencing.explain import Question, subject_records
from ehrsequencing.explain.tables import explain_subject
from ehrsequencing.prediction.drift import Drift, Sampled
from ehrsequencing.prediction.predict import NewRecords, predict
from ehrsequencing.prediction.prediction_file import Risks, refuse_early
from ehrsequencing.prediction.reference import check_reference
from ehrsequencing.prediction.run import Run, horizons_of
from ehrsequencing.records.moment import KINDS, Moment
from ehrsequencing.records.people import quantiles
from ehrsequencing.records.scales import Sample
from ehrsequencing.records.survey import Progress
from ehrsequencing.reporting.pages import render_list

HIGHEST, RAISING = 10, 5  # people on the page, and codes of each
SMALLEST = 0.0005  # of what a code adds to the risk
TENTH = 115  # place of the 90th percentile among 129 quantiles


class NotPublished(Exception):
    """The people differ so much that there is no list."""


@dataclass
class Seen:
    """What the page says of all risks, gathered shard by shard; its memory does not grow with people."""

    column: int  # of the main horizon
    threshold: float | None
    kinds: Ints = field(default_factory=lambda: np.zeros(len(KINDS), np.int64))
    above: int = 0  # prediction times
    people_above: int = 0
    highest: list[tuple[float, int, int]] = field(default_factory=list)  # risk, subject, time
    sample: Sample = field(default_factory=Sample)

    def add(self, risks: Risks) -> None:
        """Gather a shard, which holds whole people."""
        risk, subject = risks.risk[:, 0, self.column].astype(np.float64), risks.subject_id
        if risks.kind is not None:
            self.kinds += np.bincount(risks.kind, minlength=len(KINDS))
        identity = hash_u64(subject.view(np.uint64))
        owner = (identity >> np.uint64(32)).astype(np.uint32)
        hashed = hash_u64(identity ^ risks.prediction_us.view(np.uint64))
        self.sample.add(np.zeros(len(risk), np.int64), hashed, risk, owner)
        if self.threshold is not None:
            is_above = risk >= self.threshold
            self.above += int(is_above.sum())
            self.people_above += len(np.unique(subject[is_above]))
        order = np.argsort(-risk, kind="stable")
        first = np.sort(np.unique(subject[order], return_index=True)[1])[:HIGHEST]
        columns = (column[order[first]].tolist() for column in (risk, subject, risks.prediction_us))
        self.highest = sorted([*self.highest, *zip(*columns, strict=True)], reverse=True)[:HIGHEST]


def write_list(
    run: Run,
    data: Path,
    out: Path,
    *,
    at: str,
    horizons_days: Sequence[float] | None = None,
    facts: DataConfig | None = None,
    limits: DriftConfig | None = None,
    threshold: float | None = None,
    strict: bool = False,
    recalibrated: bool = False,
    force: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> tuple[dict[str, Any], Drift, dict[str, Path]]:
    """Write risks as `predict` does, and beside them a page and a JSON that only their owner may read.

    `threshold` is the main risk from which people are counted, by default the 90th percentile of the run's own. With
    `strict` there is no list, and page and JSON name nobody, where people or risks differ beyond `limits` or could not
    be compared. Returns the content of the JSON, the comparison with the training people, and what was written.
    """
    stem = re.sub(r"\.(parquet|csv|csv\.gz)$", "", out.name)
    page, content = out.with_name(f"{stem}.html"), out.with_name(f"{stem}.json")
    moment = refuse_early(out, data, at, overwrite=overwrite)
    days = horizons_of(run, horizons_days)
    kept = run.task.horizons[len(run.task.horizons) // 2]  # of the risks that the run keeps
    is_kept = horizons_days is None or kept in days
    main = days.index(kept) if kept in days else len(days) // 2
    question = Question.for_run(run, horizon_days=days[main], recalibrated=recalibrated)
    knots, source = None, "--threshold"
    if is_kept and run.training_people:
        group = "index" if "index" in at else at if at == "all" else "last"
        knots = run.training_people["risks"].get(group)
    if threshold is None and knots is not None:
        threshold, source = knots[TENTH], "the run's 90th percentile"
    seen, found = Seen(main, threshold), list[tuple[NewRecords, Drift]]()

    def judge(records: NewRecords) -> None:
        values, owner = seen.sample.by_key().of(0)
        own, sampled = quantiles(values, owner.astype(np.int64)), dict[str, Sampled]()
        if own is not None and knots is not None:
            sampled = {f"risk of {question.text}": (values, own, np.array(knots))}
        drift = records.drift(sampled)
        unseen = check_reference(run)
        if knots is None and run.training_people:
            add = "" if is_kept else f": add {format_days(kept)} to the horizons"
            unseen.append(f"the risks were not compared with those of the run{add}")
        found.append((records, replace(drift, notes=[*drift.notes, *unseen])))
        if strict and not found[0][1].passes:
            raise NotPublished

    with output_files({out: PREDICTIONS, page: LIST, content: LIST}, overwrite=overwrite) as files:
        with suppress(NotPublished):
            predict(
                run.folder,
                data,
                files[0],
                at=at,
                horizons_days=horizons_days,
                facts=facts,
                limits=limits,
                recalibrated=recalibrated,
                force=force,
                progress=progress,
                say=say,
                each=seen.add,
                before_end=judge,
            )
        (records, drift), is_there = found[0], files[0].exists()
        if is_there:
            files[0].chmod(mode_for(out, 0o666))
        kinds = {kind: n for kind, n in zip(KINDS, seen.kinds.tolist(), strict=True) if n}
        summary: dict[str, Any] = {
            **LIST.facts,
            "list": sha256(files[0]) if is_there else None,
            "question": question.text,
            "at": at,
            "prediction_times": kinds,
            "threshold": threshold,
            "threshold_from": source,
            "above": {"prediction_times": seen.above, "people": seen.people_above},
            "made_by": {**records.made_by, "version": __version__},
            "highest": _highest(question, records, moment, seen.highest) if is_there else [],
            "drift": drift.as_json(),
        }
        write_bytes(files[1], render_list(summary, drift).encode(), owner_only=True)
        write_json(files[2], summary, owner_only=True)
    wrote = {"predictions": out} if is_there else {}
    return summary, drift, wrote | {"page": page, "summary": content}


def _highest(
    question: Question,
    records: NewRecords,
    moment: Moment,
    highest: Sequence[tuple[float, int, int]],
) -> list[dict[str, Any]]:
    """The people with the highest risks, with the codes that raise them; their records are read again."""
    time_of = {subject: us for _, subject, us in highest}
    raised = dict[int, list[dict[str, Any]]]()
    for record in subject_records(records, {*time_of}, moment):
        row = int(np.flatnonzero(record.prediction_us == time_of[record.subject_id])[0])
        rows = explain_subject(question, record, row=row, kinds=["code"])[1].to_pylist()
        adding = [one for one in rows if one["change_in_risk"] >= SMALLEST][:RAISING]
        raised[record.subject_id] = [
            {"code": one["code"], "adds": round(one["change_in_risk"], 4)} for one in adding
        ]
    return [
        {
            "subject_id": subject,
            "prediction_time": str(np.datetime64(us, "us").astype("datetime64[s]")),
            "risk": round(risk, 4),
            "raised_by": raised[subject],
        }
        for risk, subject, us in highest
    ]
