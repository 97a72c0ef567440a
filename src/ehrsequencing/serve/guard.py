"""What stands before every path: host, origin, token, size and time of a request; and the headers of every answer."""

import asyncio
import json
import time
import uuid
from collections.abc import Awaitable, Callable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs

from ehrsequencing.serve.access import COOKIE, Access
from ehrsequencing.serve.limits import Limits
from ehrsequencing.serve.metrics import Metrics
from ehrsequencing.serve.problems import MEDIA_TYPE, Problem

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]
OPEN_PATHS = ("/health",)  # need no token
MOST_IDLE = 5.0  # seconds without a byte of a body
_HEADERS = {
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cross-origin-resource-policy": "same-origin",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
}


class Guard:
    """An ASGI application around another one.

    Args:
        app: The application that answers.
        access: Who may ask.
        limits: Of one request.
        metrics: Counts requests.
    """

    def __init__(self, app: App, *, access: Access, limits: Limits, metrics: Metrics) -> None:
        self.app, self.access, self.limits, self.metrics = app, access, limits, metrics

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer one connection's request, or pass it on."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # there is no web socket here
            await send({"type": "websocket.close", "code": 1008})
            return
        request_id, started, status = uuid.uuid4().hex, time.perf_counter(), 500
        scope["state"] = {**scope.get("state", {}), "request_id": request_id}
        begun = False

        async def answer(message: Message) -> None:
            nonlocal status, begun
            if message["type"] == "http.response.start":
                begun, status = True, message["status"]
                message = {
                    **message,
                    "headers": _with_headers(message.get("headers", ()), request_id),
                }
            await send(message)

        try:
            self._check(scope)
            body = await self._body(scope, receive)
            await self.app(scope, _once(body, receive), answer)
        except Problem as problem:
            await _send_problem(problem, request_id, answer)
        except Exception:  # nothing of it is logged: its text may hold what the request held
            if not begun:
                await _send_problem(Problem(500, "an unexpected error"), request_id, answer)
        finally:
            self.metrics.request(
                scope["path"], scope["method"], status, time.perf_counter() - started
            )

    def _check(self, scope: MutableMapping[str, Any]) -> None:
        """Refuse another host, another origin, a wrong token."""
        hosts = _values(scope, b"host")
        if len(hosts) != 1 or not self.access.knows_host(hosts[0]):
            fix = "name it with ehrseq serve --allow-host"
            raise Problem(421, "this server does not go by that host name", where="Host", fix=fix)
        if any(not self.access.knows_origin(origin) for origin in _values(scope, b"origin")):
            raise Problem(
                403,
                "pages of other sites may not ask",
                where="Origin",
                fix="ask from a program, not a page",
            )
        if any(value == "cross-site" for value in _values(scope, b"sec-fetch-site")):
            raise Problem(403, "pages of other sites may not ask", where="Sec-Fetch-Site")
        if self.access.token is None or scope["path"] in OPEN_PATHS:
            return
        given = [*_tokens(scope), *(_tokens_of_address(scope) if scope["path"] == "/" else [])]
        if not any([self.access.knows_token(token) for token in given]):
            fix = "send the header Authorization: Bearer TOKEN"
            headers = {"WWW-Authenticate": "Bearer"}
            raise Problem(
                401,
                "the token is missing or wrong",
                where="Authorization",
                fix=fix,
                headers=headers,
            )

    async def _body(self, scope: MutableMapping[str, Any], receive: Receive) -> bytes:
        """The whole body, which must be small and come in time."""
        declared = _values(scope, b"content-length")
        too_large = Problem(
            413,
            f"the body is larger than {self.limits.body_bytes:,} bytes",
            fix="send a smaller one",
        )
        if declared and declared[0].isdigit() and int(declared[0]) > self.limits.body_bytes:
            raise too_large
        parts, size, until = list[bytes](), 0, time.monotonic() + self.limits.seconds
        while True:
            left = min(MOST_IDLE, until - time.monotonic())
            try:
                message = await asyncio.wait_for(receive(), max(left, 0))
            except TimeoutError:
                raise Problem(
                    408, "the body came too slowly", headers={"Connection": "close"}
                ) from None
            if message["type"] == "http.disconnect":
                raise Problem(400, "the client is gone")
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > self.limits.body_bytes:
                raise too_large
            if not message.get("more_body", False):
                return b"".join(parts)


def _once(body: bytes, receive: Receive) -> Receive:
    """Gives the body that has been read, then what comes later (a disconnect)."""
    given = False

    async def replay() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


def _values(scope: MutableMapping[str, Any], name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in scope["headers"] if key == name]


def _tokens(scope: MutableMapping[str, Any]) -> list[str]:
    """Tokens that a request holds: in its header, or in the cookie that the page has."""
    found = []
    for text in _values(scope, b"authorization"):
        kind, _, token = text.partition(" ")
        found += [token.strip()] if kind.lower() == "bearer" else []
    for text in _values(scope, b"cookie"):
        try:
            cookies = SimpleCookie(text)
        except CookieError:
            continue
        found += [cookies[COOKIE].value] if COOKIE in cookies else []
    return found


def _tokens_of_address(scope: MutableMapping[str, Any]) -> list[str]:
    """A token in the address of the page, by which a browser gets its cookie."""
    return parse_qs(scope.get("query_string", b"").decode("latin-1")).get("token", [])


def _with_headers(headers: Any, request_id: str) -> list[tuple[bytes, bytes]]:
    """An answer's headers, and those that every answer has."""
    own = {key.lower() for key, _ in headers}
    more = {**_HEADERS, "x-request-id": request_id}
    return [*headers, *((k.encode(), v.encode()) for k, v in more.items() if k.encode() not in own)]


async def _send_problem(problem: Problem, request_id: str, send: Send) -> None:
    body = json.dumps(problem.body(request_id)).encode()
    headers = {"content-type": MEDIA_TYPE, "content-length": str(len(body)), **problem.headers}
    listed = [(key.lower().encode(), value.encode()) for key, value in headers.items()]
    await send({"type": "http.response.start", "status": problem.status, "headers": listed})
    await send({"type": "http.response.body", "body": body})
