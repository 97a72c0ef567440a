"""The explorer's page, and its free edits: `GET /` and `POST /edit`."""

from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from typing import Annotated
from urllib.parse import quote

import numpy as np
from fastapi import APIRouter
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from pydantic import BaseModel, ConfigDict, Field

from ehrsequencing.explain import SubjectRecord, edited_risks, subject_records
from ehrsequencing.explorer.collect import Explorer, Tick, collect
from ehrsequencing.explorer.page import page
from ehrsequencing.explorer.patients import ExplorerSettings
from ehrsequencing.prediction.predict import NewRecords
from ehrsequencing.serve.schemas import Problem
from ehrsequencing.serve.security import COOKIE
from ehrsequencing.serve.service import Service

PATHS = ("/", "/edit")
Number = Annotated[int, Field(ge=0, lt=2**31)]
MOST_STRUCK = 1_000  # codes, and as many visits


class EditRequest(BaseModel):
    """A patient of the page, and what is struck from the record."""

    model_config = ConfigDict(extra="forbid")
    patient: Number = Field(description="The number of the patient on the page")
    codes: list[Number] = Field(
        default=[], max_length=MOST_STRUCK, description="Numbers of codes, as on the page"
    )
    visits: list[Number] = Field(
        default=[], max_length=MOST_STRUCK, description="Numbers of visits, from 0"
    )


class EditResponse(BaseModel):
    """Risks of the edited record."""

    risk: list[list[list[float]]] = Field(description="[prediction time][cause][horizon]")


@dataclass(frozen=True)
class LivePage:
    """The page of a data set, and the records of its patients, by their numbers on the page."""

    explorer: Explorer
    html: str
    records: tuple[SubjectRecord, ...]

    def edited(self, request: EditRequest) -> list[list[list[float]]]:
        """Risks of an edited record at every prediction time; only the model's thread may ask.

        Raises:
            Problem: The page has no such patient, or the patient no such code or visit.
        """
        if request.patient >= len(self.records):
            raise Problem(422, "the page has no such patient", where="patient")
        record, own = self.records[request.patient], self.explorer.codes_of(request.patient)
        if not own.keys() >= set(request.codes) or any(
            visit >= record.n_visits for visit in request.visits
        ):
            raise Problem(422, "the patient has no such code or visit", where="codes, visits")
        n_shown = len(self.explorer.shown.names)
        edit = self.explorer.edit(
            request.patient, [*request.codes, *(n_shown + visit for visit in request.visits)]
        )
        run, recalibrated = self.explorer.run, self.explorer.settings.recalibrated
        risks: list[list[list[float]]] = (
            edited_risks(run, record, [edit], recalibrated=recalibrated)[0]
            .astype(np.float64)
            .tolist()
        )
        return risks


def live_page(
    records: NewRecords,
    *,
    recalibrated: bool = False,
    what_if: bool = True,
    force: bool = False,
    progress: Tick | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> LivePage:
    """The page of a run and a data set.

    Raises:
        EhrseqError: As of `collect`.
    """
    settings = ExplorerSettings(what_if=what_if, recalibrated=recalibrated)
    explorer = collect(records, settings, force=force, progress=progress, say=say)
    subjects = explorer.gathered.patients.subject_id.tolist()
    found = {one.subject_id: one for one in subject_records(records, set(subjects))}
    own = tuple(found[subject] for subject in subjects)
    return LivePage(explorer, page(explorer, live="edit"), own)


_LANDING = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>ehrsequencing: {task}</title>
<h1>Risk of {causes}</h1>
<p>This server answers for the task {task}. It keeps nothing of a request.</p>
<ul>
<li>POST /predict: rows of MEDS</li>
<li>POST /fhir: a FHIR R4 Bundle</li>
<li><a href="/cds-services">/cds-services</a>: CDS Hooks</li>
<li><a href="/openapi.json">/openapi.json</a>: how requests and answers look</li>
<li><a href="/health">/health</a>, <a href="/version">/version</a>, <a href="/metrics">/metrics</a></li>
</ul>
<p>The explorer needs records: ehrseq serve RUN DATA.</p></html>
"""


def landing(service: Service) -> APIRouter:
    """The page of a server without records: what it answers."""
    routes = APIRouter()
    facts = service.predictor.facts()
    text = _LANDING.format(task=escape(facts["task"]), causes=escape(", ".join(facts["causes"])))

    @routes.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def show() -> HTMLResponse:
        """What this server answers."""
        return HTMLResponse(text)

    return routes


def router(service: Service, live: LivePage) -> APIRouter:
    """The paths of the page."""
    routes = APIRouter()
    body = live.html.encode()

    @routes.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def show(token: str | None = None) -> Response:
        """The explorer. The page says by itself what it may load; a token in the address moves into a cookie."""
        if token is not None:
            moved = RedirectResponse("/", status_code=303)
            moved.set_cookie(COOKIE, quote(token), httponly=True, samesite="strict")
            return moved
        return HTMLResponse(body, headers={"Content-Security-Policy": "frame-ancestors 'none'"})

    def edit(request: EditRequest) -> EditResponse:
        """The risks of a patient of the page without some codes or visits."""
        return EditResponse(risk=live.edited(request))

    service.post(routes, "/edit", EditRequest, edit, reply=EditResponse)
    return routes
