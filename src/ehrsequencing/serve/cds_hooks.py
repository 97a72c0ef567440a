"""CDS Hooks (2.0): a card with the risks when a clinician opens a patient's record.

The EHR sends what the service needs as `prefetch`; the service never asks the EHR's FHIR server for more.
"""

from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from ehrsequencing.config import format_days
from ehrsequencing.readers.fhir.mapping import EVENTS
from ehrsequencing.serve.predictor import Answer
from ehrsequencing.serve.problems import Problem
from ehrsequencing.serve.service import Service

SERVICE = "ehrsequencing-risk"
PATHS = ("/cds-services", f"/cds-services/{SERVICE}")
_PREFETCH = {
    "patient": "Patient/{{context.patientId}}",
    "encounters": "Encounter?patient={{context.patientId}}",
    **{
        f"{kind[0].lower()}{kind[1:]}s": f"{kind}?patient={{{{context.patientId}}}}&_count=1000"
        for kind in EVENTS
    },
}
MOST_SUMMARY = 140  # characters, by the specification


class HookRequest(BaseModel):
    """What an EHR sends; other fields are ignored."""

    model_config = ConfigDict(extra="ignore")
    hook: str = Field(pattern="^patient-view$")
    hookInstance: str
    context: dict[str, Any]
    prefetch: dict[str, Any] = Field(
        description="As the discovery asks for it; `patient` is needed"
    )


class Source(BaseModel):
    """Who made a card."""

    label: str


class Card(BaseModel):
    """What a clinician sees."""

    summary: str = Field(max_length=MOST_SUMMARY)
    detail: str
    indicator: str
    source: Source


class Cards(BaseModel):
    """The answer to a hook."""

    cards: list[Card]


class CdsService(BaseModel):
    """One service of the discovery."""

    hook: str
    id: str
    title: str
    description: str
    prefetch: dict[str, str]


class Discovery(BaseModel):
    """All services."""

    services: list[CdsService]


def router(service: Service) -> APIRouter:
    """The paths of CDS Hooks."""
    routes = APIRouter()
    task = service.predictor.run.task.name

    @routes.get("/cds-services", response_model=Discovery)
    async def discover() -> Discovery:
        """What EHRs ask first: the services, and what to send along."""
        about = f"Predicted risk of {', '.join(service.predictor.asked.causes)} from the patient's record"
        own = CdsService(
            hook="patient-view",
            id=SERVICE,
            title=f"Risk: {task}",
            description=about,
            prefetch=_PREFETCH,
        )
        return Discovery(services=[own])

    @routes.post(
        f"/cds-services/{SERVICE}",
        response_model=Cards,
        responses={412: {"description": "The prefetch is missing"}},
    )
    async def patient_view(request: HookRequest) -> Cards:
        """A card with the risks of the patient whose record is opened."""
        _, answer = await service.ask_fhir(_one_bundle(request.prefetch))
        return Cards(cards=[_card(answer, service)])

    return routes


def _one_bundle(prefetch: dict[str, Any]) -> dict[str, Any]:
    """The resources of all prefetched values, which are resources or bundles of them."""
    if not isinstance(prefetch.get("patient"), dict):
        fix = "send what /cds-services asks for"
        raise Problem(412, "the prefetched patient is missing", where="prefetch.patient", fix=fix)
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


def _card(answer: Answer, service: Service) -> Card:
    asked, source = (
        service.predictor.asked,
        Source(label=f"ehrsequencing, task {service.predictor.run.task.name}"),
    )
    if not len(answer.risks):
        why = f"{answer.why_none}."
        return Card(
            summary="No predicted risk for this patient",
            detail=why,
            indicator="info",
            source=source,
        )
    risk = answer.risks.risk[0]
    heads = [
        "until the next visit" if day is None else f"by {format_days(day)}"
        for day in answer.horizons_days
    ]
    lines = ["| risk of | " + " | ".join(heads) + " |", "|---" * (len(heads) + 1) + "|"]
    for c, cause in enumerate(asked.causes):
        lines.append(
            f"| {cause} | "
            + " | ".join(f"{100 * value:.2g} %" for value in risk[c].tolist())
            + " |"
        )
    notes = [
        f"{answer.unknown_rows} of {answer.tokens} rows have a code that the model does not know.",
        "An association in the model, not the effect of a treatment.",
    ]
    summary = f"Risk of {asked.causes[0]} {heads[-1]}: {100 * risk[0, -1].item():.2g} %"
    detail = "\n".join([*lines, "", *notes])
    return Card(summary=summary[:MOST_SUMMARY], detail=detail, indicator="info", source=source)
