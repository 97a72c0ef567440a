"""FHIR R4: `POST /fhir` answers a patient's Bundle with `RiskAssessment` resources, and CDS Hooks (2.0.1) with a card.

A Bundle becomes MEDS rows by the mapping of `ehrseq import fhir` (`readers/fhir/`). For CDS Hooks the EHR sends what
the service needs as `prefetch`; the service never asks the EHR's FHIR server for more.
"""

import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from ehrsequencing.config import format_days
from ehrsequencing.core.version import __version__
from ehrsequencing.readers.fhir import read_bundle
from ehrsequencing.readers.fhir.elements import entries_of, kind_of, text, texts, walk
from ehrsequencing.readers.fhir.mapping import EVENTS, READ
from ehrsequencing.serve.predictor import Answer, Predictor
from ehrsequencing.serve.schemas import Problem
from ehrsequencing.serve.service import Service

MEDIA_TYPE = "application/fhir+json"
SERVICE = "ehrsequencing-risk"
HOOK_PATH = f"/cds-services/{SERVICE}"
PATHS = ("/fhir", "/cds-services", HOOK_PATH)
_PREFETCH = {
    "patient": "Patient/{{context.patientId}}",
    "encounters": "Encounter?patient={{context.patientId}}",
    **{
        f"{kind[0].lower()}{kind[1:]}s": f"{kind}?patient={{{{context.patientId}}}}&_count=1000"
        for kind in EVENTS
    },
}
MOST_SUMMARY = 140  # characters, by the specification


class Bundle(BaseModel):
    """A FHIR R4 Bundle with one Patient and its resources."""

    model_config = ConfigDict(extra="allow")
    resourceType: str
    entry: Any = []


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
    """The paths of FHIR and of CDS Hooks."""
    routes, predictor = APIRouter(), service.predictor
    task, causes = predictor.run.task.name, predictor.asked.causes
    column = predictor.encounter_column

    def assess(bundle: Bundle) -> dict[str, Any]:
        """`RiskAssessment` resources of one patient, at its last prediction time."""
        resource = bundle.model_dump()
        lacks = _lacks(resource)
        if lacks is not None:
            raise Problem(
                422,
                f"is only a part of a record: {lacks}",
                where="Bundle",
                fix="send the patient's whole record in one Bundle",
            )
        record = read_patient(resource, column)
        return risk_bundle(record, predictor.answer(record.rows), predictor)

    def patient_view(request: HookRequest) -> dict[str, Any]:
        """A card with the risks of the patient whose record is opened."""
        bundle, missing = _one_bundle(request.prefetch), _missing(request)
        if missing:
            indicator, summary = "warning", "No predicted risk: the record is incomplete"
            lines = ["What is missing:", "", *(f"- {what}" for what in missing)]
            detail = "\n".join([*lines, "", "A risk from half a record may be far off."])
        else:
            answer = predictor.answer(read_patient(bundle, column).rows)
            not_sent = [name for name in _PREFETCH if name not in request.prefetch]
            indicator = "info"
            summary, detail = _summary_and_detail(answer, causes, not_sent)
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

    service.post(routes, "/fhir", Bundle, assess, reply=Bundle, media=MEDIA_TYPE)
    service.post(routes, HOOK_PATH, HookRequest, patient_view)
    return routes


@dataclass(frozen=True)
class PatientRecord:
    """What was read of a bundle.

    Attributes:
        reference: Of the patient, as in `Patient/12`.
        rows: With the columns of MEDS but `subject_id`.
        left_out: How many resources made no row, by type; of types that are not read under `others`.
    """

    reference: str
    rows: pa.Table
    left_out: Counter[str]


def read_patient(bundle: Any, encounter_column: str | None) -> PatientRecord:
    """Read the resources of one patient; the ids of encounters get the name of a column of the run.

    Raises:
        Problem: It is no Bundle, or it does not hold exactly one patient with an id.
    """
    fix = "send a Bundle of one patient and its resources"
    if kind_of(bundle) != "Bundle":
        raise Problem(422, "is no FHIR Bundle", where="body", fix=fix)
    resources = [entry.resource for entry in entries_of(bundle)]
    names = {text(one, "id") for one in resources if kind_of(one) == "Patient"}
    if not names or None in names:
        raise Problem(422, "holds no Patient with an id", where="Bundle.entry", fix=fix)
    if len(names) > 1:
        raise Problem(422, "holds more than one Patient", where="Bundle.entry", fix=fix)
    rows, report = read_bundle(bundle)
    left_out = Counter[str]()
    for kind, counts in report.tables.items():
        left_out[kind if kind in READ else "others"] += (
            counts.rows_in - counts.kept if kind != "Medication" else 0
        )
    rows = rows.select(["time", "code", "numeric_value", "encounter_id"])
    rows = rows.rename_columns({"encounter_id": encounter_column or "encounter_id"})
    return PatientRecord(f"Patient/{names.pop()}", rows, +left_out)


def risk_bundle(record: PatientRecord, answer: Answer, predictor: Predictor) -> dict[str, Any]:
    """The answer as a FHIR R4 Bundle of the type `collection`: assessments, then an OperationOutcome with remarks."""
    resources = [*_assessments(record, answer, predictor), _remarks(record, answer)]
    entries = [
        {"fullUrl": f"urn:uuid:{uuid.uuid4()}", "resource": resource} for resource in resources
    ]
    return {"resourceType": "Bundle", "type": "collection", "entry": entries}


def _assessments(
    record: PatientRecord, answer: Answer, predictor: Predictor
) -> list[dict[str, Any]]:
    run, risks = predictor.run, answer.risks
    method = f"ehrsequencing {__version__}, task {run.task.name}, run {run.fingerprint}"
    found = []
    for row, us in enumerate(risks.prediction_us.tolist()):
        # a FHIR time of day would need a zone
        day = str(np.datetime64(us, "us").astype("datetime64[D]"))
        for c, cause in enumerate(predictor.asked.causes):
            for h, horizon in enumerate(answer.horizons_days):
                risk = _percent(risks.risk[row, c, h].item())  # FHIR R4 has them in per cent
                prediction = {"outcome": {"text": cause}, "probabilityDecimal": risk}
                if horizon is not None:
                    days = {"unit": "d", "system": "http://unitsofmeasure.org", "code": "d"}
                    prediction["whenRange"] = {
                        "low": {"value": predictor.asked.start_days, **days},
                        "high": {"value": horizon, **days},
                    }
                if risks.low is not None and risks.high is not None:
                    low, high = (_percent(end[row, c, h].item()) for end in (risks.low, risks.high))
                    prediction["rationale"] = (
                        f"95 % of the ensemble's members lie between {low} % and {high} %"
                    )
                found.append(
                    {
                        "resourceType": "RiskAssessment",
                        "status": "final",
                        "method": {"text": method},
                        "subject": {"reference": record.reference},
                        "occurrenceDateTime": day,
                        "prediction": [prediction],
                    }
                )
    return found


def _percent(risk: float) -> float:
    return round(100 * min(max(risk, 0.0), 1.0), 6)


def _remarks(record: PatientRecord, answer: Answer) -> dict[str, Any]:
    """What a reader of the assessments should know, without anything of the patient but counts."""
    counts = answer.record
    left = ", ".join(f"{count} of {kind}" for kind, count in sorted(record.left_out.items()))
    texts = [
        f"{counts.unknown_rows} of {counts.tokens} rows have a code that the run does not know "
        f"({counts.unknown_codes} codes)",
        *([f"resources that were not used: {left}"] if left else []),
        *([f"no assessment: {answer.why_none}"] if answer.why_none else []),
        "whenRange counts days from the occurrence on; the probability is in per cent",
    ]
    issues = [
        {"severity": "information", "code": "informational", "diagnostics": text} for text in texts
    ]
    issues += [
        {"severity": "warning", "code": "incomplete", "diagnostics": text}
        for text in answer.warnings
    ]
    return {"resourceType": "OperationOutcome", "issue": issues}


def _one_bundle(prefetch: dict[str, Any]) -> dict[str, Any]:
    """The resources of all prefetched values, which are resources or bundles of them."""
    if not isinstance(prefetch.get("patient"), dict):
        raise Problem(
            412,
            "the prefetched patient is missing",
            where="prefetch.patient",
            fix="send what /cds-services asks for",
        )
    entries: list[Any] = []
    for value in prefetch.values():
        if not isinstance(value, dict):
            continue
        if value.get("resourceType") == "Bundle":
            listed = value.get("entry")
            entries += listed if isinstance(listed, list) else []
        else:
            entries.append({"resource": value})
    return {"resourceType": "Bundle", "entry": entries}


def _missing(request: HookRequest) -> list[str]:
    """What the EHR did not send of the patient's record, in words; empty where it says that all is there."""
    found = []
    asked, sent = request.context.get("patientId"), text(request.prefetch["patient"], "id")
    if isinstance(asked, str) and asked.removeprefix("Patient/") != sent:
        found.append("patient: another one than that of context.patientId")
    for name in _PREFETCH:
        lacks = _lacks(request.prefetch.get(name))
        if lacks is not None:
            found.append(f"{name}: {lacks}")
    return found


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
    answer: Answer, causes: Sequence[str], not_sent: Sequence[str]
) -> tuple[str, str]:
    """What a clinician sees: one line, and a table in Markdown."""
    if not len(answer.risks):
        return "No predicted risk for this patient", f"{answer.why_none}."
    risk = answer.risks.risk[0]
    heads = [
        "until the next visit" if day is None else f"by {format_days(day)}"
        for day in answer.horizons_days
    ]
    lines = ["| risk of | " + " | ".join(heads) + " |", "|---" * (len(heads) + 1) + "|"]
    for cause, values in zip(causes, risk.tolist(), strict=True):
        cells = " | ".join(f"{100 * value:.2g} %" for value in values)
        lines.append(f"| {cause} | {cells} |")
    lines += [
        "",
        f"{answer.record.unknown_rows} of {answer.record.tokens} rows have a code that the model does not know.",
        "An association in the model, not the effect of a treatment.",
        *([f"Not sent by the EHR, and not used: {', '.join(not_sent)}."] if not_sent else []),
    ]
    summary = f"Risk of {causes[0]} {heads[-1]}: {100 * risk[0, -1].item():.2g} %"
    return summary[:MOST_SUMMARY], "\n".join(lines)
