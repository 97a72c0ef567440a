"""What every request meets: hosts, origins and the token, limits, the thread of the model."""

import asyncio
import hmac
import ipaddress
import uuid
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar
from urllib.parse import unquote

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import Response
from fastapi.security import HTTPBearer
from pydantic import TypeAdapter
from pydantic_core import to_json
from starlette.middleware.base import RequestResponseEndpoint
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect

from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.serve.predictor import Limits, Predictor
from ehrsequencing.serve.schemas import Problem

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
COOKIE = "ehrseq_token"
SHORTEST_TOKEN = 16  # characters
LEFT = "has_left"  # the state of a request whose client is gone
HEADERS = {
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cross-origin-resource-policy": "same-origin",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
}
bearer = HTTPBearer(auto_error=False)


@dataclass(frozen=True)
class Access:
    """Names under which the server may be addressed, and its token.

    A page of another site that a browser shows could reach this server by a name that it makes point here (DNS
    rebinding), or by a form. So the Host must be one that we know, and an Origin must be the same host.

    Attributes:
        hosts: Names without ports, lower case; IPv6 in brackets.
        token: What clients must know; None where anybody on this machine may ask.
    """

    hosts: tuple[str, ...] = LOOPBACK
    token: str | None = None

    def knows_origin(self, origin: str) -> bool:
        """Whether a page of this origin may ask: one that this server itself has sent."""
        scheme, _, host = origin.lower().partition("://")
        return scheme in ("http", "https") and "/" not in host and _without_port(host) in self.hosts

    def knows_token(self, given: str) -> bool:
        """Whether the token is right; takes the same time wherever texts of one length differ."""
        if self.token is None:
            return True
        both = (text.encode("utf-8", "replace") for text in (given, self.token))
        return hmac.compare_digest(*both)


def access_to(host: str, *, token: str | None, names: Iterable[str] = ()) -> Access:
    """The access to a server that listens on an address.

    Args:
        host: The address.
        token: What clients must know; None: anybody.
        names: Further names under which clients address it, as behind a proxy.

    Raises:
        EhrseqError: It would listen beyond this machine without a token, or the token is short.
    """
    token = token or None
    if token is not None and len(token) < SHORTEST_TOKEN:
        raise EhrseqError(
            f"is shorter than {SHORTEST_TOKEN} characters",
            where="--token",
            fix='use a long random one: python -c "import secrets; print(secrets.token_urlsafe())"',
        )
    try:
        is_loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name other than localhost may lead anywhere
        is_loopback = host.lower() == "localhost"
    if token is None and not is_loopback:
        raise EhrseqError(
            "would let anybody in the network ask, without a token",
            where=f"--host {host}",
            fix="set EHRSEQ_TOKEN (or --token), or listen on 127.0.0.1 behind a proxy; see docs/serve.md",
        )
    own = f"[{host}]" if ":" in host else host
    given = [_without_port(name.strip().lower()) for name in names]
    return Access((*LOOPBACK, own.lower(), *given), token)


def _without_port(host: str) -> str:
    """A host without its port.

    >>> _without_port("[::1]:80"), _without_port("ehr.example:443"), _without_port("localhost")
    ('[::1]', 'ehr.example', 'localhost')
    """
    if host.startswith("["):
        return host[: host.find("]") + 1]
    return host.partition(":")[0]


def guard(app: FastAPI, access: Access) -> None:
    """Refuse requests of strangers, and give every answer its headers."""
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(access.hosts), www_redirect=False)

    @app.middleware("http")
    async def answer(request: Request, call_next: RequestResponseEndpoint) -> Response:
        request_id = uuid.uuid4().hex
        request.state.request_id = request_id
        response: Response
        try:
            await _refuse_strangers(request, access)
            response = await call_next(request)
        except Problem as problem:
            response = problem.response(request_id)
        except ClientDisconnect:
            response = Response(status_code=499)  # which nobody reads
        except Exception:  # nothing of it is logged: its text may hold what the request held
            response = Problem(500, "an unexpected error").response(request_id)
        for name, value in {**HEADERS, "x-request-id": request_id}.items():
            response.headers.setdefault(name, value)
        return response


async def _refuse_strangers(request: Request, access: Access) -> None:
    """Refuse another origin and a wrong token.

    The header has the token, or the cookie of the page, or (to get the cookie) the page's address.
    """
    headers = request.headers
    if not all(access.knows_origin(origin) for origin in headers.getlist("origin")):
        raise Problem(
            403,
            "pages of other sites may not ask",
            where="Origin",
            fix="ask from a program, not a page",
        )
    if "cross-site" in headers.getlist("sec-fetch-site"):
        raise Problem(403, "pages of other sites may not ask", where="Sec-Fetch-Site")
    header = await bearer(request)
    given = [header.credentials if header else "", unquote(request.cookies.get(COOKIE, ""))]
    if request.url.path == "/":
        given.append(request.query_params.get("token", ""))
    knows = any([access.knows_token(token) for token in given])
    if not knows and request.url.path != "/health":
        raise Problem(
            401,
            "the token is missing or wrong",
            where="Authorization",
            fix="send the header Authorization: Bearer TOKEN",
            headers={"WWW-Authenticate": "Bearer"},
        )


# ---- what all paths use: the thread of the model, and the bodies that are held ---------------------------------------


Result = TypeVar("Result")
JSON = "application/json"


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


class Service:
    """The parts of a running service.

    Args:
        predictor: Answers, in the model's thread.
        clock: Gives the present moment, as records write it: the local time, without a zone.
    """

    def __init__(self, predictor: Predictor, clock: Callable[[], datetime]) -> None:
        self.predictor, self.model = predictor, ModelThread(predictor.limits)
        self.held_bytes = 0  # of all bodies that arrive or wait
        self.clock = clock

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
            # before any JSON value becomes a Python object: one follows each comma and opening bracket, in texts too
            objects = text.count(b"{")
            values = objects + text.count(b"[") + text.count(b",")
            if objects > limits.objects or values > limits.values:
                raise Problem(
                    413,
                    f"more than {limits.objects:,} JSON objects or {limits.values:,} values",
                    where="body",
                    fix="leave out rows or resources that the model does not read",
                )
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
