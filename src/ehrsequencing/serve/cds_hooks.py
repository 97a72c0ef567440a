"""CDS Hooks (2.0.1): a card with the risks of the patient whose record an EHR opens.

FHIR R4 resources become MEDS rows by the mapping of `ehrseq import fhir` (`readers/fhir/`). The EHR sends what the
service needs as `prefetch`; the service never asks the EHR's FHIR server for more.
"""

import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.compute as pc
from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from ehrsequencing.config import format_days
from ehrsequencing.readers.fhir import read_bundle
from ehrsequencing.readers.fhir.elements import entries_of, kind_of, text, texts, walk
from ehrsequencing.readers.fhir.mapping import EVENTS
from ehrsequencing.readers.import_report import REASONS
from ehrsequencing.records.events import DEATH
from ehrsequencing.records.meds import FIXES
from ehrsequencing.serve.predictor import Answer, Predictor
from ehrsequencing.serve.schemas import Problem
from ehrsequencing.serve.security import Service

SERVICE = "ehrsequencing-risk"
HOOK_PATH = f"/cds-services/{SERVICE}"
_PREFETCH = {
    "patient": "Patient/{{context.patientId}}",
    "encounters": "Encounter?patient={{context.patientId}}&_count=1000",
    **{
        f"{kind[0].lower()}{kind[1:]}s": f"{kind}?patient={{{{context.patientId}}}}&_count=1000"
        for kind in EVENTS
    },
}
MOST_SUMMARY = 140  # characters, by the specification
_NEAR = {0: "today", 1: "yesterday"}
_YEAR_DAYS = 365.25


class HookRequest(BaseModel):
    """What an EHR sends; other fields are ignored."""

    model_config = ConfigDict(extra="ignore")
    hook: str = Field(pattern="^patient-view$")
    hookInstance: str
    context: dict[str, Any]
    prefetch: dict[str, Any] = Field(
        description="As the discovery asks for it; `patient` is needed"
    )


def router(service: Service) -> APIRouter:
    """The paths of CDS Hooks."""
    routes, predictor = APIRouter(), service.predictor
    task, causes = predictor.run.task.name, predictor.asked.causes

    def patient_view(request: HookRequest) -> dict[str, Any]:
        """A card with the risks of the patient whose record is opened."""
        if not isinstance(request.prefetch.get("patient"), dict):
            raise Problem(
                412,
                "the prefetched patient is missing",
                where="prefetch.patient",
                fix="send what /cds-services asks for",
            )
        entries: list[Any] = []
        for value in request.prefetch.values():  # resources, or bundles of them
            if kind_of(value) == "Bundle":
                entries += walk(value, "entry")
            elif isinstance(value, dict):
                entries.append({"resource": value})
        bundle, missing = {"resourceType": "Bundle", "entry": entries}, _missing(request)
        if missing:
            indicator, summary = "warning", "No predicted risk: the record is incomplete"
            lines = "\n".join(f"- {what}" for what in missing)
            detail = f"What is missing:\n\n{lines}\n\nA risk from half a record may be far off."
        else:
            indicator, now = "info", service.clock()
            rows, unused = read_patient(bundle, predictor)
            # a booked visit is no record yet; clocks of other zones may be ahead
            is_later = pc.greater(rows["time"], now + timedelta(days=1))
            earlier = rows.filter(pc.invert(pc.fill_null(is_later, False)))
            unused["entries of later days than tomorrow"] = len(rows) - len(earlier)
            answer = predictor.answer(earlier)
            unused.update({FIXES[name]: n for name, n in answer.record.fixes.items()})
            not_sent = [name for name in _PREFETCH if name not in request.prefetch]
            times = {"newest": pc.max(earlier["time"]).as_py(), "now": now}
            summary, detail = _summary_and_detail(answer, predictor, not_sent, unused, **times)
        card = {
            "uuid": str(uuid.uuid4()),
            "summary": summary,
            "detail": detail,
            "indicator": indicator,
            "source": {"label": f"ehrsequencing, task {task}"},
        }
        return {"cards": [card]}

    @routes.get("/cds-services")
    async def discover() -> dict[str, Any]:
        """What EHRs ask first: the services, and what to send along."""
        own = {
            "hook": "patient-view",
            "id": SERVICE,
            "title": f"Risk: {predictor.run.task.heading}",
            "description": f"Predicted risk of {', '.join(causes)} from the patient's record",
            "prefetch": _PREFETCH,
        }
        return {"services": [own]}

    service.post(routes, HOOK_PATH, HookRequest, patient_view)
    return routes


def read_patient(bundle: dict[str, Any], predictor: Predictor) -> tuple[pa.Table, Counter[str]]:
    """The rows of one patient's resources, with the columns of MEDS but `subject_id`; and why others are not used.

    Args:
        bundle: A FHIR R4 Bundle.
        predictor: Its run names the column for the ids of encounters, and how the import of its data read times.

    Raises:
        Problem: It does not hold exactly one patient with an id.
    """
    resources = [entry.resource for entry in entries_of(bundle)]
    patients = [one for one in resources if kind_of(one) == "Patient"]
    names = {text(one, "id") for one in patients}
    if len(names) != 1 or None in names:
        raise Problem(
            422,
            "holds more than one Patient" if len(names) > 1 else "holds no Patient with an id",
            where="prefetch",
            fix="send one patient and its resources",
        )
    noted = predictor.run.manifest.get("import", {})
    zone = ZoneInfo(noted["time_zone"]) if "time_zone" in noted else None
    settings = {name: noted[name] for name in ("known", "provisional") if name in noted}
    rows, report = read_bundle(bundle, zone, **settings)
    lost = sum((table.lost for table in report.tables.values()), Counter[str]())
    unused = Counter({REASONS[reason]: n for reason, n in lost.items()})
    rows = rows.select(["time", "code", "numeric_value", "encounter_id"])
    if any(one.get("deceasedBoolean") is True or one.get("deceasedDateTime") for one in patients):
        # a death that is dated to this year or month only may lie in the future
        death = pa.Table.from_pylist([{"code": DEATH}], schema=rows.schema)
        rows = pa.concat_tables([rows, death])
    column = predictor.encounter_column or "encounter_id"
    return rows.rename_columns({"encounter_id": column}), unused


def _missing(request: HookRequest) -> list[str]:
    """What the EHR did not send of the patient's record, in words; empty where it says that all is there."""
    missing = []
    subject, sent = request.context.get("patientId"), text(request.prefetch["patient"], "id")
    if isinstance(subject, str) and subject.removeprefix("Patient/") != sent:
        missing.append("patient: another one than that of context.patientId")
    for name in _PREFETCH:
        lacks = _lacks(request.prefetch.get(name))
        if lacks is not None:
            missing.append(f"{name}: {lacks}")
    return missing


def _lacks(value: Any) -> str | None:
    """Why a resource, or a bundle of search results, is only a part of what was asked for; None if it is whole."""
    if kind_of(value) == "OperationOutcome":
        return "could not be fetched"
    if kind_of(value) != "Bundle":
        return None
    entries = [entry for entry in walk(value, "entry") if isinstance(entry, dict)]
    for entry in entries:
        severities = set(texts(entry, "resource.issue.severity"))
        if kind_of(entry.get("resource")) == "OperationOutcome" and severities & {"error", "fatal"}:
            return "could not be fetched"
    if "next" in texts(value, "link.relation"):
        return "has further pages, which were not fetched"
    matches = sum(text(entry, "search.mode") in (None, "match") for entry in entries)
    total = value.get("total")
    if isinstance(total, int) and total > matches:
        return f"holds {matches:,} of {total:,} resources, the others are missing"
    return None


def _summary_and_detail(
    answer: Answer,
    predictor: Predictor,
    not_sent: Sequence[str],
    unused: Mapping[str, int],
    *,
    newest: datetime,
    now: datetime,
) -> tuple[str, str]:
    """What a clinician sees: one line, and a table in Markdown; no risk that an old record no longer supports."""
    causes, stale_days = predictor.asked.causes, predictor.limits.stale_days
    changed = [f"Not used as sent: {n} ({why})." for why, n in unused.items() if n]
    if not len(answer.risks.subject_id):
        why = "\n".join([f"Reason: {answer.why_none}.", *changed])
        return f"No predicted risk: {answer.why_none}"[:MOST_SUMMARY], why
    start = datetime.fromisoformat(answer.curves(causes)[0].time)
    shown = [
        (place, "until the next visit" if day is None else f"by {format_days(day)}")
        for place, day in enumerate(answer.horizons_days)
        if day is None or start + timedelta(days=day) >= now
    ]
    if not shown or now - newest > timedelta(days=stale_days):
        old = (
            f"The newest prediction would count from {_dated(start, now)}. The newest entry of the record is of "
            f"{_dated(newest, now)}. That is too long ago for a risk that holds today."
        )
        summary = f"No predicted risk: the newest prediction is of {start:%Y-%m-%d}"
        return summary, "\n".join([old, *changed])
    places, heads = zip(*shown, strict=True)
    risk = answer.risks.risk[0][:, places]
    lines = ["| risk of | " + " | ".join(heads) + " |", "|---" * (len(heads) + 1) + "|"]
    for cause, values in zip(causes, risk.tolist(), strict=True):
        cells = " | ".join(f"{100 * value:.2g} %" for value in values)
        lines.append(f"| {cause} | {cells} |")
    lines += [
        "",
        f"The risks count from {_dated(start, now)}.",
        f"{answer.record.unknown_rows} of {answer.record.tokens} rows have a code that the model does not know.",
        *changed,
        "An association in the model, not the effect of a treatment.",
        *([f"Not sent by the EHR, and not used: {', '.join(not_sent)}."] if not_sent else []),
    ]
    counted = f"{heads[-1]}, counted from {_dated(start, now)}"
    summary = f"Risk of {causes[0]} {counted}: {100 * risk[0, -1].item():.2g} %"
    return summary[:MOST_SUMMARY], "\n".join(lines)


def _dated(moment: datetime, now: datetime) -> str:
    """A day, and how long ago it is.

    >>> _dated(datetime(2024, 3, 1, 9), datetime(2024, 3, 31)), _dated(datetime(2014, 3, 1), datetime(2024, 3, 1))
    ('2024-03-01 (30 days ago)', '2014-03-01 (10 years ago)')
    """
    days = max((now.date() - moment.date()).days, 0)
    ago = f"{days} days ago" if days < 2 * _YEAR_DAYS else f"{days / _YEAR_DAYS:.2g} years ago"
    return f"{moment:%Y-%m-%d} ({_NEAR.get(days, ago)})"
