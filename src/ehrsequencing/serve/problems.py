"""Errors of the service as JSON problems (RFC 9457), which never hold a value of a request."""

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from pydantic import BaseModel, Field

MEDIA_TYPE = "application/problem+json"


class ProblemBody(BaseModel):
    """What a problem looks like in an answer."""

    type: str = "about:blank"
    title: str = Field(description="The name of the status")
    status: int
    detail: str = Field(description="What went wrong, without any value of the request")
    where: str | None = Field(None, description="The part of the request concerned")
    fix: str | None = Field(None, description="What to do about it")
    request_id: str = Field(description="Also in the header X-Request-ID")


class Problem(Exception):
    """A request that cannot be answered.

    Args:
        status: The HTTP status.
        what: What went wrong.
        where: The part of the request concerned.
        fix: What to do about it.
        headers: Of the answer.
    """

    def __init__(
        self,
        status: int,
        what: str,
        *,
        where: str = "",
        fix: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.status, self.what, self.where, self.fix = status, what, where, fix
        self.headers = dict(headers or {})
        super().__init__(what)

    def body(self, request_id: str) -> dict[str, Any]:
        """The JSON object."""
        body = ProblemBody(
            title=HTTPStatus(self.status).phrase,
            status=self.status,
            detail=self.what,
            where=self.where or None,
            fix=self.fix or None,
            request_id=request_id,
        )
        return body.model_dump(exclude_none=True)


def of_validation(errors: Sequence[Mapping[str, Any]]) -> Problem:
    """The problem of a body or query that does not have the declared shape.

    Names of unknown fields are left out: like values, they may hold anything.
    """
    first = errors[0]
    parts = [str(part) for part in first["loc"]]
    if first["type"] in ("extra_forbidden", "json_invalid"):
        parts = parts[:-1]
    what = "is no JSON" if first["type"] == "json_invalid" else _without_values(first)
    more = f" ({len(errors) - 1} more such errors)" if len(errors) > 1 else ""
    return Problem(
        422, what + more, where=".".join(parts), fix="see /openapi.json for the shape of a request"
    )


def _without_values(error: Mapping[str, Any]) -> str:
    """Pydantic's message, where it is of a type whose messages hold nothing of the input."""
    if error["type"] in ("value_error", "assertion_error"):
        return "is not valid"
    return str(error["msg"])
