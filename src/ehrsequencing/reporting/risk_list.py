"""The file of risks with the page and the JSON beside it: who was asked, how they differ, who has the highest risks."""

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ehrsequencing.config import format_days
from ehrsequencing.core.arrays import Ints, hash_u64
from ehrsequencing.core.disclosure import enough_people
from ehrsequencing.core.file_sets import output_files
from ehrsequencing.core.files import mode_for, remembered, sha256, write_bytes, write_json
from ehrsequencing.core.outputs import LIST, PREDICTIONS
from ehrsequencing.core.version import __version__
from ehrsequencing.explain import Question, deletion, subject_records
from ehrsequencing.prediction.drift import Drift, Sampled, compare
from ehrsequencing.prediction.predict import NewRecords, Request, predict
from ehrsequencing.prediction.prediction_file import Risks
from ehrsequencing.prediction.reference import check_reference
from ehrsequencing.prediction.run import Run, horizons_of
from ehrsequencing.records.codes import read_descriptions
from ehrsequencing.records.encoding import KINDS, Moment
from ehrsequencing.records.events import DAY_US
from ehrsequencing.records.people import quantiles
from ehrsequencing.records.scales import Sample
from ehrsequencing.reporting.wording import environment

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
    window_days: float  # of the main horizon; infinite for the `visit` head
    kinds: Ints = field(default_factory=lambda: np.zeros(len(KINDS), np.int64))
    above: int = 0  # prediction times
    people_above: int = 0
    over: int = 0  # prediction times whose window has passed
    # risk, subject, time; of those whose window is open, and of the others
    highest: list[list[tuple[float, int, int]]] = field(default_factory=lambda: [[], []])
    sample: Sample = field(default_factory=Sample)

    def add(self, risks: Risks) -> None:
        """Gather a shard, which holds whole people."""
        risk, subject = risks.risk[:, 0, self.column].astype(np.float64), risks.subject_id
        if risks.kind is not None:
            self.kinds += np.bincount(risks.kind, minlength=len(KINDS))
        identity = hash_u64(subject.view(np.uint64))
        owner = (identity >> np.uint64(32)).astype(np.uint32)
        hashed = hash_u64(identity ^ risks.prediction_us.view(np.uint64))
        days_ago = ((risks.now_us or 0) - risks.prediction_us) / DAY_US
        is_open = days_ago < self.window_days
        for key, values in enumerate((risk, days_ago)):
            self.sample.add(np.full(len(risk), key), hashed, values, owner)
        self.over += int((~is_open).sum())
        if self.threshold is not None:
            is_above = (risk >= self.threshold) & is_open
            self.above += int(is_above.sum())
            self.people_above += len(np.unique(subject[is_above]))
        for highest, chosen in zip(self.highest, (is_open, ~is_open), strict=True):
            order = np.flatnonzero(chosen)[np.argsort(-risk[chosen], kind="stable")]
            first = order[np.sort(np.unique(subject[order], return_index=True)[1])[:HIGHEST]]
            columns = (values[first].tolist() for values in (risk, subject, risks.prediction_us))
            found = sorted([*highest, *zip(*columns, strict=True)], reverse=True)
            highest[:] = found[:HIGHEST]


def write_list(
    run: Run,
    data: Path,
    out: Path,
    request: Request,
    *,
    threshold: float | None = None,
    strict: bool = False,
) -> tuple[dict[str, Any], Drift, dict[str, Path]]:
    """Write risks as `predict` does, and beside them a page and a JSON that only their owner may read.

    `threshold` is the main risk from which people are counted, by default the 90th percentile of the run's own. With
    `strict` there is no list, and page and JSON name nobody, where people or risks differ beyond `limits` or could not
    be compared. Returns the content of the JSON, the comparison with the training people, and what was written.
    """
    at, horizons_days = request.at, request.horizons_days
    moment = request.refuse_early(out, data)
    stem = re.sub(r"\.(parquet|csv|csv\.gz)$", "", out.name)
    page, content = out.with_name(f"{stem}.html"), out.with_name(f"{stem}.json")
    days = horizons_of(run, horizons_days)
    kept = run.task.horizons[len(run.task.horizons) // 2]  # of the risks that the run keeps
    is_kept = horizons_days is None or kept in days
    main = days.index(kept) if kept in days else len(days) // 2
    question = Question.for_run(run, horizon_days=days[main])
    knots, source = None, "--threshold"
    if is_kept and run.training_people:
        group = "index" if "index" in at else at if at == "all" else "last"
        knots = run.training_people["risks"].get(group)
    if threshold is None and knots is not None:
        threshold, source = knots[TENTH], "the run's 90th percentile"
    window = days[main] or np.inf
    seen, found = Seen(main, threshold, window), list[tuple[NewRecords, Drift]]()

    def judge(records: NewRecords) -> None:
        values, owner = seen.sample.by_key().of(0)
        own, sampled = quantiles(values, owner.astype(np.int64)), dict[str, Sampled]()
        if own is not None and knots is not None:
            sampled = {f"risk of {question.text}": (values, own, np.array(knots))}
        limits = request.limits
        drift = compare(records.people, run, parents=records.parents, limits=limits, risks=sampled)
        unseen = check_reference(run)
        if knots is None and run.training_people:
            add = "" if is_kept else f": add {format_days(kept)} to the horizons"
            unseen.append(f"the risks were not compared with those of the run{add}")
        found.append((records, replace(drift, notes=[*drift.notes, *unseen])))
        if strict and not found[0][1].passes:
            raise NotPublished

    with output_files(
        {out: PREDICTIONS, page: LIST, content: LIST}, overwrite=request.overwrite
    ) as files:
        with suppress(NotPublished):
            predict(
                run,
                data,
                files[0],
                replace(request, overwrite=False),
                each=seen.add,
                before_end=judge,
            )
        (records, drift), is_there = found[0], files[0].exists()
        if is_there:
            files[0].chmod(mode_for(out, 0o666))
        days_ago, owner = seen.sample.by_key().of(1)
        ago = quantiles(days_ago, owner.astype(np.int64))
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
            "had_the_event": _had_the_event(run, threshold, days[main]),
            "window": format_days(window) if np.isfinite(window) else "",
            "over": seen.over,
            # of 11 people or more
            "median_days_ago": None if ago is None else float(ago[len(ago) // 2]),
            "drift": drift.as_json(),
        }
        for name, highest in zip(("highest", "highest_over"), seen.highest, strict=True):
            summary[name] = _highest(question, records, moment, highest) if is_there else []
        shown = environment().get_template("list.html.jinja").render(summary)
        write_bytes(files[1], shown.encode(), owner_only=True)
        write_json(files[2], summary, owner_only=True)
    wrote = {"predictions": out} if is_there else {}
    return summary, drift, wrote | {"page": page, "summary": content}


def _had_the_event(run: Run, threshold: float | None, days: float | None) -> float | None:
    """The share of the held-out people with such a risk at their index who had the event by then.

    None where the run has them no more or is for other people, or has so few that it would point at a person.
    """
    is_gone = "update" in run.manifest or not Path(run.manifest["prepared"]).is_dir()
    if threshold is None or days is None or is_gone:
        return None

    def share() -> float | None:
        records = run.prepared().records(run.task.name, "held_out")
        risk = run.predictor.risk(records, [days], start_days=run.task.blanking)[:, 0, 0]
        rows = records.rows
        at = np.flatnonzero((rows.prediction_us == rows.index_us) & (risk >= threshold))
        duration, cause = rows.duration_days[at], rows.cause[at]
        people = len(np.unique(records.subject_id[at]))
        if not enough_people(int(((cause == 1) & (duration <= days)).sum()), people):
            return None
        from ehrsequencing.metrics.plain import (
            cumulative_incidence,
        )  # which loads scipy, for one number that is kept

        return float(cumulative_incidence(duration, cause, at=[days])[0])

    found = remembered([run.fingerprint, "had the event", threshold, days], share)
    return None if found is None else float(found)


def _highest(
    question: Question,
    records: NewRecords,
    moment: Moment,
    highest: Sequence[tuple[float, int, int]],
) -> list[dict[str, Any]]:
    """The people with the highest risks, with the codes that raise them; their records are read again."""
    place_of = {subject: (place, us) for place, (_, subject, us) in enumerate(highest)}
    descriptions, found = read_descriptions(records.data), [dict[str, Any]() for _ in highest]
    for record in subject_records(records, {*place_of}, moment) if highest else ():
        place, us = place_of[record.subject_id]
        row = int(np.flatnonzero(record.moments.prediction_us == us)[0])
        effects = deletion(question, record, row=row, kinds=["code"]).effects
        adding = [(one.code or "", one.effect) for one in effects if one.effect >= SMALLEST]
        when = str(np.datetime64(us, "us").astype("datetime64[s]"))
        # the code that made a moment an index; empty where it is none, or where no code does
        code, codes, events = "", records.builder.index_codes, record.record.events
        if codes is not None and us == record.moments.index_us[row]:
            index_us = us - round(records.run.task.index.after * DAY_US)
            at = np.flatnonzero(codes.events(events) & (events.time_us == index_us))
            code = events.codes[events.code[at[0]]] if len(at) else ""
        found[place] = {
            "subject_id": record.subject_id,
            "prediction_time": when,
            "moment": f"{when[:16].replace('T', ' ')} {descriptions.get(code, code)}".strip(),
            "risk": round(highest[place][0], 4),
            "raised_by": [
                {"code": code, "name": descriptions.get(code, code), "adds": round(adds, 4)}
                for code, adds in adding[:RAISING]
            ],
        }
    return found
