"""What all paths use: the thread of the model, the bodies that are held, and counts for Prometheus."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any, TypeVar

import prometheus_client as prometheus
from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import TypeAdapter
from pydantic_core import to_json
from starlette.requests import ClientDisconnect

from ehrsequencing.serve.predictor import Predictor
from ehrsequencing.serve.schemas import Problem
from ehrsequencing.serve.security import LEFT, Limits

Result = TypeVar("Result")
JSON = "application/json"
_METHODS = ("GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH")
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 1, 2, 5, 10, 30)


class ModelThread:
    """One thread that calls the model, one request after another; for use from an event loop.

    Args:
        limits: How many requests may wait, and how long.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits, self.waiting = limits, 0
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="model")

    async def run(self, call: Callable[[], Result]) -> Result:
        """What a function returns, called in the thread of the model.

        Raises:
            Problem: Too many requests wait, or the answer takes too long; or what the function raises.
        """
        self.refuse_if_full()
        self.waiting += 1
        try:
            future = asyncio.wrap_future(self._pool.submit(call))
            return await asyncio.wait_for(future, self.limits.seconds)
        except TimeoutError:
            raise Problem(
                503, "the answer took too long", fix="send fewer visits, or ask at last"
            ) from None
        finally:
            self.waiting -= 1

    def refuse_if_full(self) -> None:
        """Refuse a further request.

        Raises:
            Problem: As many wait as may.
        """
        if self.waiting > self.limits.waiting:  # one of them is being answered
            raise busy()

    def close(self) -> None:
        """Stop once what runs is answered."""
        self._pool.shutdown(cancel_futures=True)


def busy() -> Problem:
    """The problem of a request that comes while there is too much to do."""
    return Problem(503, "the server is busy", fix="ask again later", headers={"Retry-After": "1"})


def refuse_costly(body: bytearray, limits: Limits) -> None:
    """Refuse a body for its number of JSON values, before any of them becomes a Python object.

    A value follows a comma or an opening bracket. Within texts these marks count too.

    Raises:
        Problem: There are too many.
    """
    objects = body.count(b"{")
    values = objects + body.count(b"[") + body.count(b",")
    if objects > limits.objects or values > limits.values:
        raise Problem(
            413,
            f"more than {limits.objects:,} JSON objects or {limits.values:,} values",
            where="body",
            fix="leave out rows or resources that the model does not read",
        )


class Service:
    """The parts of a running service.

    Args:
        predictor: Answers, in the model's thread.
        paths: The paths that are counted by name; any other is counted as `other`.
        clock: Gives the present moment, as records write it: the local time, without a zone.
    """

    def __init__(
        self, predictor: Predictor, paths: tuple[str, ...], clock: Callable[[], datetime]
    ) -> None:
        self.predictor, self.model, self.paths = predictor, ModelThread(predictor.limits), paths
        self.held_bytes = 0  # of all bodies that arrive or wait
        self.clock = clock
        self._registry = prometheus.CollectorRegistry()
        self._requests = prometheus.Counter(
            "ehrseq_requests", "Requests", ["path", "method", "status"], registry=self._registry
        )
        self._seconds = prometheus.Histogram(
            "ehrseq_request_seconds",
            "Time from a request's head to the end of its answer",
            ["path"],
            buckets=_SECONDS,
            registry=self._registry,
        )
        waiting = prometheus.Gauge(
            "ehrseq_waiting", "Requests that wait for the model", registry=self._registry
        )
        waiting.set_function(lambda: self.model.waiting)

    def metrics(self) -> bytes:
        """The counts. Labels are paths, methods and statuses, never anything of a request."""
        return prometheus.generate_latest(self._registry)

    def count_request(self, path: str, method: str, status: int, seconds: float) -> None:
        """Count a request."""
        path = path if path in self.paths else "other"
        self._requests.labels(path, method if method in _METHODS else "other", str(status)).inc()
        self._seconds.labels(path).observe(seconds)

    def post(
        self,
        routes: APIRouter,
        path: str,
        body: Any,
        answer: Callable[[Any], Any],
        *,
        reply: Any = dict[str, Any],
        **settings: Any,
    ) -> None:
        """Add a path. Bodies are parsed and answered in the model's thread, so that the others need not wait.

        Args:
            routes: Where to add it.
            path: The path.
            body: The type of a body.
            answer: Gets a body, and gives what is sent as JSON. Its docstring describes the path.
            reply: The type of an answer, for the description.
            settings: Of FastAPI.
        """
        shape_of_body, limits = TypeAdapter(body), self.predictor.limits

        def answered(request: Request, text: bytearray) -> bytes:
            if getattr(request.state, LEFT, False):
                raise ClientDisconnect
            refuse_costly(text, limits)
            return to_json(answer(shape_of_body.validate_json(text)))

        async def handle(request: Request) -> Response:
            self.model.refuse_if_full()  # before its body is read
            text = bytearray()
            try:
                await self._receive(request, text)
                sent = await self.model.run(lambda: answered(request, text))
            finally:
                self.held_bytes -= len(text)
            return Response(sent, media_type=JSON)

        content = {JSON: {"schema": _inlined(shape_of_body.json_schema())}}
        shape = _inlined(TypeAdapter(reply).json_schema(mode="serialization"))
        routes.post(
            path,
            name=answer.__name__,
            description=answer.__doc__,
            response_class=Response,
            responses={200: {"description": "The answer", "content": {JSON: {"schema": shape}}}},
            openapi_extra={"requestBody": {"required": True, "content": content}},
            **settings,
        )(handle)

    async def _receive(self, request: Request, body: bytearray) -> None:
        """Add the parts of a request's body to `body`, which counts as held.

        Raises:
            Problem: It is too large, it comes too slowly, or the server holds too much.
            ClientDisconnect: The client left before its end.
        """
        limits = self.predictor.limits
        what = f"the body is larger than {limits.body_bytes:,} bytes"
        too_large = Problem(413, what, fix="send a smaller one")
        declared = request.headers.get("content-length", "")
        if declared.isdigit() and int(declared) > limits.body_bytes:
            raise too_large
        try:
            async with asyncio.timeout(limits.seconds):
                async for part in request.stream():
                    body += part
                    self.held_bytes += len(part)
                    if len(body) > limits.body_bytes:
                        raise too_large
                    if len(body) < self.held_bytes > limits.held_bytes:
                        raise busy()
        except TimeoutError:
            raise Problem(
                408, "the body came too slowly", headers={"Connection": "close"}
            ) from None


def _inlined(schema: dict[str, Any]) -> dict[str, object]:
    """A JSON schema with its definitions in the places that name them."""
    parts = schema.pop("$defs", {})

    def inlined(node: Any) -> Any:
        if isinstance(node, dict) and "$ref" in node:
            return inlined(parts[node["$ref"].rpartition("/")[2]])
        if isinstance(node, dict):
            return {name: inlined(value) for name, value in node.items()}
        return [inlined(value) for value in node] if isinstance(node, list) else node

    return inlined(schema)
