"""`POST /fhir`: the record of one FHIR R4 patient → `RiskAssessment` resources, one for each cause and horizon."""

import uuid
from typing import Any

import numpy as np
from fastapi import APIRouter, Body
from fastapi.responses import JSONResponse

from ehrsequencing.core.version import __version__
from ehrsequencing.serve.fhir_record import PatientRecord
from ehrsequencing.serve.predictor import Answer
from ehrsequencing.serve.service import Service

MEDIA_TYPE = "application/fhir+json"
PATHS = ("/fhir",)
_BUNDLE = {
    "type": "object",
    "required": ["resourceType", "entry"],
    "properties": {
        "resourceType": {"const": "Bundle"},
        "entry": {"type": "array", "items": {"type": "object"}},
    },
    "description": "A FHIR R4 Bundle with one Patient and its resources",
}
_OK: dict[str, Any] = {
    "description": "A Bundle of RiskAssessment",
    "content": {MEDIA_TYPE: {"schema": _BUNDLE}},
}


def router(service: Service) -> APIRouter:
    """The path of FHIR."""
    routes = APIRouter()
    accepted = {MEDIA_TYPE: {"schema": _BUNDLE}, "application/json": {"schema": _BUNDLE}}

    @routes.post(
        "/fhir",
        response_class=JSONResponse,
        responses={200: _OK},
        openapi_extra={"requestBody": {"required": True, "content": accepted}},
    )
    async def assess(bundle: dict[str, Any] = Body()) -> JSONResponse:  # noqa: B008 (FastAPI's way)
        """`RiskAssessment` resources of one patient, at its last prediction time."""
        record, answer = await service.ask_fhir(bundle)
        return JSONResponse(risk_bundle(record, answer, service), media_type=MEDIA_TYPE)

    return routes


def risk_bundle(record: PatientRecord, answer: Answer, service: Service) -> dict[str, Any]:
    """The answer as a FHIR R4 Bundle of the type `collection`: assessments, then an OperationOutcome with remarks."""
    assessments = list(_assessments(record, answer, service))
    resources = [*assessments, _remarks(record, answer)]
    entries = [
        {"fullUrl": f"urn:uuid:{uuid.uuid4()}", "resource": resource} for resource in resources
    ]
    return {"resourceType": "Bundle", "type": "collection", "entry": entries}


def _assessments(record: PatientRecord, answer: Answer, service: Service) -> list[dict[str, Any]]:
    asked, run, risks = service.predictor.asked, service.predictor.run, answer.risks
    method = f"ehrsequencing {__version__}, task {run.task.name}, run {run.fingerprint}"
    found = []
    for row, us in enumerate(risks.prediction_us.tolist()):
        # a FHIR time of day would need a zone
        day = str(np.datetime64(us, "us").astype("datetime64[D]"))
        for c, cause in enumerate(asked.causes):
            for h, horizon in enumerate(answer.horizons_days):
                band = None
                if risks.low is not None and risks.high is not None:
                    band = risks.low[row, c, h].item(), risks.high[row, c, h].item()
                found.append(
                    {
                        "resourceType": "RiskAssessment",
                        "status": "final",
                        "method": {"text": method},
                        "subject": {"reference": record.reference},
                        "occurrenceDateTime": day,
                        "prediction": [
                            _prediction(
                                cause, risks.risk[row, c, h].item(), band, asked.start_days, horizon
                            )
                        ],
                    }
                )
    return found


def _prediction(
    cause: str,
    risk: float,
    band: tuple[float, float] | None,
    start_days: float,
    horizon: float | None,
) -> dict[str, Any]:
    """One prediction; FHIR R4 has probabilities in per cent."""
    prediction: dict[str, Any] = {"outcome": {"text": cause}, "probabilityDecimal": _percent(risk)}
    if horizon is not None:
        days = {"unit": "d", "system": "http://unitsofmeasure.org", "code": "d"}
        prediction["whenRange"] = {
            "low": {"value": start_days, **days},
            "high": {"value": horizon, **days},
        }
    if band is not None:
        low, high = (_percent(end) for end in band)
        prediction["rationale"] = f"95 % of the ensemble's members lie between {low} % and {high} %"
    return prediction


def _percent(risk: float) -> float:
    return round(100 * min(max(risk, 0.0), 1.0), 6)


def _remarks(record: PatientRecord, answer: Answer) -> dict[str, Any]:
    """What a reader of the assessments should know, without anything of the patient but counts."""
    left = ", ".join(f"{count} of {kind}" for kind, count in sorted(record.left_out.items()))
    texts = [
        f"{answer.unknown_rows} of {answer.tokens} rows have a code that the run does not know "
        f"({answer.unknown_codes} codes)",
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
