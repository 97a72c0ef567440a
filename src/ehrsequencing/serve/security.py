"""Which requests are answered: hosts, origins and the token; limits of size and time; headers of every answer."""

import hmac
import ipaddress
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from urllib.parse import unquote

from fastapi import FastAPI, Request
from fastapi.responses import Response
from fastapi.security import HTTPBearer
from starlette.middleware.base import RequestResponseEndpoint
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect

from ehrsequencing.core.errors import EhrseqError
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
class Limits:
    """All limits of the server. With the defaults a network of the default size needs at most 2 s of CPU and 100 MB.

    Attributes:
        body_bytes: Size of a request's body.
        held_bytes: Size of all bodies together that arrive or wait; one alone may be larger.
        objects: JSON objects of a body, which cost up to 40 µs each; a FHIR resource has about nine, a row is one.
        values: JSON values of a body.
        rows: Rows of a record.
        visits: Visits of a record.
        explained: Rows of a record that is explained: each of its codes is removed once.
        numbers: Risks in one answer: prediction times × causes × horizons.
        waiting: Requests that may wait for the model; further ones are told to come back, and their bodies not read.
        connections: Open connections.
        seconds: How long a request may take to arrive, wait for its answer, and then read it: each as long.
        idle_seconds: How long a connection may take to send the whole head of a request.
        drain_seconds: How long open requests have to end when the server stops.
        stale_days: A card gives no risk where the record's newest row is older.
    """

    body_bytes: int = 16 * 2**20
    held_bytes: int = 64 * 2**20
    objects: int = 40_000
    values: int = 400_000
    rows: int = 20_000
    visits: int = 5_000
    explained: int = 100
    numbers: int = 200_000
    waiting: int = 64
    connections: int = 1024
    seconds: float = 30.0
    idle_seconds: int = 5
    drain_seconds: int = 5
    stale_days: float = 365.25


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
    if token is None and not _is_loopback(host):
        raise EhrseqError(
            "would let anybody in the network ask, without a token",
            where=f"--host {host}",
            fix="set EHRSEQ_TOKEN (or --token), or listen on 127.0.0.1 behind a proxy; see docs/serve.md",
        )
    own = f"[{host}]" if ":" in host else host
    given = [_without_port(name.strip().lower()) for name in names]
    return Access((*LOOPBACK, own.lower(), *given), token)


def _is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address; a name other than localhost may lead anywhere."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _without_port(host: str) -> str:
    """A host without its port.

    >>> _without_port("[::1]:80"), _without_port("ehr.example:443"), _without_port("localhost")
    ('[::1]', 'ehr.example', 'localhost')
    """
    if host.startswith("["):
        return host[: host.find("]") + 1]
    return host.partition(":")[0]


def guard(app: FastAPI, access: Access, count: Callable[[str, str, int, float], None]) -> None:
    """Refuse requests of strangers, give every answer its headers, and count it.

    Args:
        app: The application.
        access: Who may ask.
        count: Called with the path, the method, the status and the seconds of each request.
    """
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(access.hosts), www_redirect=False)

    @app.middleware("http")
    async def answer(request: Request, call_next: RequestResponseEndpoint) -> Response:
        started, request_id = time.perf_counter(), uuid.uuid4().hex
        request.state.request_id = request_id
        response: Response
        try:
            await _refuse_strangers(request, access)
            response = await call_next(request)
        except Problem as problem:
            response = problem.response(request_id)
        except ClientDisconnect:
            response = Response(status_code=499)  # for /metrics, as nginx counts it
        except Exception:  # nothing of it is logged: its text may hold what the request held
            response = Problem(500, "an unexpected error").response(request_id)
        for name, value in {**HEADERS, "x-request-id": request_id}.items():
            response.headers.setdefault(name, value)
        path, seconds = request.url.path, time.perf_counter() - started
        count(path, request.method, response.status_code, seconds)
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
