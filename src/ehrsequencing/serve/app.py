"""The service: which path answers what, and an HTTP server (uvicorn) on an address of this machine."""

import gc
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import uvicorn
from annotated_types import Len
from fastapi import Depends, FastAPI, Request
from fastapi.responses import JSONResponse
from pydantic import FailFast, ValidationError, create_model
from starlette.exceptions import HTTPException
from uvicorn.protocols.http.h11_impl import H11Protocol

from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.version import __version__
from ehrsequencing.prediction.reference import check_reference
from ehrsequencing.prediction.run import Run
from ehrsequencing.records.encoding import Moment
from ehrsequencing.serve import cds_hooks, pages
from ehrsequencing.serve.predictor import Limits, Predictor, table_of
from ehrsequencing.serve.schemas import (
    PROBLEM_TYPE,
    ExplainRequest,
    ExplainResponse,
    PredictRequest,
    PredictResponse,
    Problem,
    ProblemBody,
    Row,
    SubjectRequest,
    problem_of_validation,
)
from ehrsequencing.serve.security import LEFT, Access, Service, access_to, bearer, guard

_STATUSES = {
    400: "The body cannot be read",
    401: "The token is missing or wrong",
    403: "A page of another site asked",
    404: "There is no such path",
    405: "The path has no such method",
    408: "The body came too slowly",
    412: "CDS Hooks: the patient was not sent",
    413: "The body or the record is too large",
    422: "The request cannot be answered as it is",
    500: "An unexpected error",
    503: "The server is busy",
}
PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {
        "description": what,
        "content": {PROBLEM_TYPE: {"schema": ProblemBody.model_json_schema()}},
    }
    for status, what in _STATUSES.items()
}


def create_app(
    predictor: Predictor,
    access: Access | None = None,
    explorer: str | None = None,
    *,
    clock: Callable[[], datetime] = datetime.now,
) -> FastAPI:
    """The service of a run.

    Args:
        predictor: Answers; the application gives it a thread.
        access: Who may ask; default: this machine, without a token.
        explorer: The explorer's page, if it is served.
        clock: Gives the present moment, by which a card tells how old a record is.
    """
    service = Service(predictor, clock)
    allowed = access or Access()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        service.model.close()

    app = FastAPI(
        title="ehrsequencing",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        description="Risk curves of a trained run for one subject at a time. Nothing of a request is kept.",
        responses=PROBLEMS,
        dependencies=[Depends(bearer)] if allowed.token else [],
    )
    app.state.service = service
    _add_own_paths(app, service)
    app.include_router(cds_hooks.router(service))
    app.include_router(pages.router(predictor, explorer))
    guard(app, allowed)

    # every error is a JSON problem
    def answer(request: Request, problem: Problem) -> JSONResponse:
        return problem.response(request.state.request_id)

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> JSONResponse:
        if isinstance(error, Problem):
            return answer(request, error)
        what = _STATUSES.get(error.status_code, "The request cannot be answered")
        return answer(request, Problem(error.status_code, what.lower(), headers=error.headers))

    @app.exception_handler(EhrseqError)
    async def user_error(request: Request, error: EhrseqError) -> JSONResponse:
        where = {"--horizons": "horizons_days", "--cause": "cause"}.get(error.where, error.where)
        return answer(request, Problem(422, error.what, where=where, fix=error.fix))

    @app.exception_handler(ValidationError)
    async def shape(request: Request, error: ValidationError) -> JSONResponse:
        return answer(request, problem_of_validation(error.errors()))

    return app


def _add_own_paths(app: FastAPI, service: Service) -> None:
    predictor = service.predictor

    @app.get("/health")
    async def health() -> dict[str, str]:
        """Whether the server answers; needs no token."""
        return {"status": "ok"}

    @app.get("/version")
    async def version() -> dict[str, Any]:
        """What answers: the version of ehrsequencing, and the run."""
        facts = predictor.facts()
        return {"ehrsequencing": __version__, **facts}

    def predict(request: PredictRequest) -> PredictResponse:
        """Risk curves of one subject from its rows in MEDS."""
        answer = predictor.answer(
            _rows_of(request, predictor),
            request.at,
            horizons_days=request.horizons_days,
            until_us=request.until_us,
        )
        days = [day for day in answer.horizons_days if day is not None]
        return PredictResponse(
            **predictor.facts() | {"horizons_days": days or None},
            start_days=predictor.asked.start_days,
            predictions=answer.curves(predictor.asked.causes),
            why_none=answer.why_none,
            warnings=answer.warnings,
            record=answer.record,
        )

    def explain(request: ExplainRequest) -> ExplainResponse:
        """What each code adds to one risk of a subject, and how unlike the training people's its record is."""
        return predictor.explain(
            _rows_of(request, predictor),
            request.at,
            cause=request.cause,
            horizon_days=request.horizon_days,
            until_us=request.until_us,
        )

    limits, add = predictor.limits, partial(service.post, app.router)
    add("/predict", _bounded(PredictRequest, limits.rows), predict, reply=PredictResponse)
    add("/explain", _bounded(ExplainRequest, limits.explained), explain, reply=ExplainResponse)


def _rows_of(request: SubjectRequest, predictor: Predictor) -> pa.Table:
    """The rows of a request, which are then forgotten: they would be held until the answer is sent."""
    try:
        Moment(request.at)
    except EhrseqError:
        raise Problem(
            422, "is not a date of the calendar", where="at", fix="write it as 2026-03-01"
        ) from None
    rows = table_of(request, predictor.encounter_column)
    request.rows.clear()
    return rows


def _bounded(body: type[SubjectRequest], most: int) -> type[SubjectRequest]:
    """A body whose rows are counted before they are read, so that too many are refused at once."""
    rows = Annotated[list[Row], FailFast(), Len(1, most)]
    return create_model(body.__name__, __base__=body, rows=(rows, ...))


def listener(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 is any free one.

    Raises:
        EhrseqError: The address is not one of this machine, or something listens there.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        bound = socket.socket(family, socket.SOCK_STREAM)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
        bound.listen(2048)  # from now on clients wait instead of being refused
    except (OSError, OverflowError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or "no such address"
        raise EhrseqError(
            f"cannot listen: {why}", where=f"{host}, port {port}", fix="name another --port"
        ) from error
    return bound


class Connection(H11Protocol):
    """A connection that is closed when its client sends no whole head of a request in time, or reads no whole answer.

    `Limits.idle_seconds` and `Limits.seconds` are these times.
    """

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._wait()

    def on_response_complete(self) -> None:
        """Begin to wait for the next request."""
        super().on_response_complete()
        self._waits.cancel()
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no longer, and start no work for who has left."""
        self._waits.cancel()
        if self.scope is not None:
            self.scope["state"][LEFT] = True
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._waits = self.loop.call_later(self.timeout_keep_alive, self._close_if_idle)

    def pause_writing(self) -> None:
        """Begin to wait until the client has read what was sent."""
        super().pause_writing()
        self._waits.cancel()
        seconds = self.config.app.state.service.predictor.limits.seconds  # type: ignore[union-attr]
        self._waits = self.loop.call_later(seconds, self.transport.abort)

    def _close_if_idle(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.abort()  # also where the client has not read the end of an answer


def server(
    predictor: Predictor,
    access: Access | None = None,
    explorer: str | None = None,
    *,
    clock: Callable[[], datetime] = datetime.now,
) -> uvicorn.Server:
    """A server that is ready to run on a listening socket.

    It writes no access log, and trusts no header of a proxy.
    """
    limits = predictor.limits
    config = uvicorn.Config(
        create_app(predictor, access, explorer, clock=clock),
        http=Connection,
        access_log=False,
        log_level="warning",
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=limits.idle_seconds,
        timeout_graceful_shutdown=limits.drain_seconds,
        limit_concurrency=limits.connections,
        h11_max_incomplete_event_size=16 * 2**10,
        ws="none",
        lifespan="on",
    )
    return uvicorn.Server(config)


def serve(
    run_folder: Path,
    data: Path | None = None,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str | None = None,
    names: tuple[str, ...] = (),
    limits: Limits | None = None,
    explorer: Callable[[Run], str | None] = lambda _: None,
    on_start: Callable[[str], None] = lambda _: None,
    say: Callable[[str], None] = lambda _: None,
) -> None:
    """Serve a run until the process is interrupted.

    Args:
        run_folder: A trained run.
        data: A MEDS data set, for the parents of its codes.
        host: The address to listen on; beyond loopback a token is needed.
        port: 0: any free one.
        token: What clients must know.
        names: Further host names under which clients address the server.
        limits: Of one request.
        explorer: Makes the explorer's page, where it is served.
        on_start: Called with the URL once the server listens.
        say: Called with a warning where the run does not give its reference risks here.

    Raises:
        EhrseqError: Run, data or address cannot be used.
    """
    allowed = access_to(host, token=token, names=names)
    run = Run(run_folder)
    predictor = Predictor(run, data, limits=limits)
    with listener(host, port) as bound:
        page = explorer(run)  # it says as much where the reference risks have moved
        for moved in check_reference(run) if page is None else ():
            say(f"warning: {moved}")
        running = server(predictor, allowed, page)
        shown = f"[{host}]" if ":" in host else host
        gc.collect()
        gc.freeze()  # what is loaded by now stays: later collections need not look at it, and pause no request
        on_start(f"http://{shown}:{bound.getsockname()[1]}")
        running.run(sockets=[bound])
