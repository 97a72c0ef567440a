"""The service as an ASGI application: which path answers what."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from ehrsequencing.core.arrays import Floats32
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.version import __version__
from ehrsequencing.serve import cds_hooks, explorer_page, fhir, problems
from ehrsequencing.serve.access import Access
from ehrsequencing.serve.explorer_page import LivePage
from ehrsequencing.serve.guard import Guard
from ehrsequencing.serve.metrics import MEDIA_TYPE, Metrics
from ehrsequencing.serve.predictor import Answer, ModelThread, Predictor
from ehrsequencing.serve.problems import Problem, ProblemBody
from ehrsequencing.serve.rows import question_of
from ehrsequencing.serve.service import Service
from ehrsequencing.serve.shapes import Health, PredictRequest, PredictResponse, RecordFacts, Version

_STATUSES = {
    400: "The body cannot be read",
    401: "The token is missing or wrong",
    403: "A page of another site asked",
    404: "There is no such path",
    405: "The path has no such method",
    408: "The body came too slowly",
    413: "The body or the record is too large",
    421: "The server does not go by that host name",
    422: "The request cannot be answered as it is",
    500: "An unexpected error",
    503: "The server is busy",
}
PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {
        "description": what,
        "content": {problems.MEDIA_TYPE: {"schema": ProblemBody.model_json_schema()}},
    }
    for status, what in _STATUSES.items()
}


def create_app(
    predictor: Predictor, access: Access | None = None, live: LivePage | None = None
) -> Guard:
    """The service of a run.

    Args:
        predictor: Answers; the application gives it a thread.
        access: Who may ask; default: this machine, without a token.
        live: The explorer's page, if it is served.
    """
    model = ModelThread(predictor)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        model.close()

    app = FastAPI(
        title="ehrsequencing",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        description="Risk curves of a trained run for one subject at a time. Nothing of a request is kept.",
        responses=PROBLEMS,
    )
    paths = (
        "/health",
        "/version",
        "/metrics",
        "/openapi.json",
        "/predict",
        *fhir.PATHS,
        *cds_hooks.PATHS,
        *explorer_page.PATHS,
    )
    metrics = Metrics(paths)
    metrics.watch(lambda: model.waiting)
    service = Service(predictor, model, metrics)
    _add_own_paths(app, service)
    app.include_router(fhir.router(service))
    app.include_router(cds_hooks.router(service))
    if live is not None:
        app.include_router(explorer_page.router(service, live))
    _answer_errors(app)
    return Guard(app, access=access or Access(), limits=predictor.limits, metrics=metrics)


def _add_own_paths(app: FastAPI, service: Service) -> None:
    @app.get("/health", response_model=Health)
    async def health() -> dict[str, str]:
        """Whether the server answers; needs no token."""
        return {"status": "ok"}

    @app.get("/version", response_model=Version)
    async def version() -> dict[str, Any]:
        """What answers: the version of ehrsequencing, and the run."""
        return {
            "ehrsequencing": __version__,
            **service.facts(),
            "recalibrated": service.predictor.recalibrated,
        }

    @app.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def read_metrics() -> Response:
        """Counts for Prometheus."""
        return Response(service.metrics.text(), media_type=MEDIA_TYPE)

    @app.post("/predict", response_model=PredictResponse, response_model_exclude_none=False)
    async def predict(request: PredictRequest) -> dict[str, Any]:
        """Risk curves of one subject from its rows in MEDS."""
        answer = await service.ask(question_of(request, service.predictor.encounter_column))
        return {**service.facts(), **_as_json(answer, service)}


def _as_json(answer: Answer, service: Service) -> dict[str, Any]:
    days = [day for day in answer.horizons_days if day is not None]
    risks, causes = answer.risks, service.predictor.asked.causes
    times = [
        str(np.datetime64(us, "us").astype("datetime64[us]")) for us in risks.prediction_us.tolist()
    ]

    def curves(array: Floats32 | None, row: int) -> dict[str, list[float]] | None:
        return (
            None
            if array is None
            else dict(zip(causes, array[row].astype(np.float64).tolist(), strict=True))
        )

    predictions = [
        {
            "time": time.removesuffix(".000000"),
            "risk": curves(risks.risk, row),
            "low": curves(risks.low, row),
            "high": curves(risks.high, row),
        }
        for row, time in enumerate(times)
    ]
    facts = {name: getattr(answer, name) for name in RecordFacts.model_fields}
    return {
        "horizons_days": days or None,
        "start_days": service.predictor.asked.start_days,
        "predictions": predictions,
        "why_none": answer.why_none,
        "warnings": answer.warnings,
        "record": facts,
    }


def _answer_errors(app: FastAPI) -> None:
    """Every error is a JSON problem."""

    def problem_json(request: Request, problem: Problem) -> JSONResponse:
        body = problem.body(request.scope["state"]["request_id"])
        return JSONResponse(
            body, problem.status, headers=problem.headers, media_type=problems.MEDIA_TYPE
        )

    @app.exception_handler(Problem)
    async def problem(request: Request, error: Problem) -> JSONResponse:
        return problem_json(request, error)

    @app.exception_handler(EhrseqError)
    async def user_error(request: Request, error: EhrseqError) -> JSONResponse:
        where = {"--horizons": "horizons_days"}.get(error.where, error.where)
        return problem_json(request, Problem(422, error.what, where=where, fix=error.fix))

    @app.exception_handler(RequestValidationError)
    async def shape(request: Request, error: RequestValidationError) -> JSONResponse:
        return problem_json(request, problems.of_validation(error.errors()))

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> JSONResponse:
        what = _STATUSES.get(error.status_code, "The request cannot be answered")
        return problem_json(
            request, Problem(error.status_code, what.lower(), headers=error.headers)
        )

    @app.exception_handler(Exception)
    async def unexpected(request: Request, _: Exception) -> JSONResponse:
        return problem_json(request, Problem(500, "an unexpected error"))
