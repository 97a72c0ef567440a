"""The JSON that goes in and out, and problems, as pydantic models; the OpenAPI description is made of them."""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Any

import numpy as np
from fastapi import HTTPException
from fastapi.responses import JSONResponse
from pydantic import BaseModel, BeforeValidator, ConfigDict, FailFast, Field, NaiveDatetime
from pydantic_core import PydanticCustomError

PROBLEM_TYPE = "application/problem+json"
INT64 = 2**63
Code = Annotated[str, Field(min_length=1, max_length=10_000, examples=["ICD10CM//I50.9"])]
Horizon = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_CLOCK_TIME = re.compile(r"\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}(:\d{2}(\.\d+)?)?)?", re.ASCII)


def _clock_time(given: object) -> datetime:
    """A time as it is written; pydantic alone would read a number as seconds since 1970."""
    try:
        if isinstance(given, str) and _CLOCK_TIME.fullmatch(given):
            return datetime.fromisoformat(given)
    except ValueError:  # the 30th of February
        pass
    raise PydanticCustomError("clock_time", "is no clock time without a zone")


ClockTime = Annotated[NaiveDatetime, BeforeValidator(_clock_time)]


class Row(BaseModel):
    """One row of MEDS: an event, or with a null time something that is always true, such as sex."""

    # MEDS data sets may have more columns, such as text_value
    model_config = ConfigDict(extra="ignore")
    time: ClockTime | None = Field(
        None,
        description="Clock time without a zone; null for static codes",
        examples=["2024-03-01T09:30:00"],
    )
    code: Code
    numeric_value: float | None = Field(None, examples=[7.2])
    encounter_id: str | int | None = Field(
        None, description="Where the run cuts visits by encounters"
    )
    subject_id: Annotated[int, Field(ge=-INT64, lt=INT64)] | None = Field(
        None, description="May be left out; all rows are of one subject"
    )


class SubjectRequest(BaseModel):
    """The record of one subject, and from when on its risk is asked."""

    model_config = ConfigDict(extra="forbid")
    rows: Annotated[list[Row], FailFast()] = Field(min_length=1, description="In any order")
    at: str = Field(
        "last",
        pattern=r"^(all|last|index|every-index|\d{4}-\d{2}-\d{2}(T\d{2}:\d{2}(:\d{2})?)?)$",
        description="`all` prediction times, the `last`, the newest `index`, `every-index`, or a moment: as of then",
        examples=["last"],
    )
    until: ClockTime | None = Field(
        None,
        description="The record is complete until then; no later prediction time is answered. Default: last row",
    )

    @property
    def until_us(self) -> int | None:
        """Microseconds since 1970."""
        return None if self.until is None else int(np.datetime64(self.until, "us").astype(np.int64))


class PredictRequest(SubjectRequest):
    """The record of one subject, and what is asked about it."""

    horizons_days: list[Horizon] | None = Field(
        None,
        min_length=1,
        max_length=64,
        description="Days after the prediction time; default: the task's horizons",
    )


class ExplainRequest(SubjectRequest):
    """The record of one subject, and which of its risks is explained."""

    cause: str | None = Field(None, description="Default: the task's first outcome")
    horizon_days: Horizon | None = Field(None, description="Default: the run's main horizon")


class Prediction(BaseModel):
    """The risks at one prediction time."""

    time: str = Field(description="The prediction time")
    risk: dict[str, list[float]] = Field(
        description="Cause → cumulative incidence by each horizon, from 0 to 1"
    )
    low: dict[str, list[float]] | None = Field(
        None, description="Lower end of the range of the members"
    )
    high: dict[str, list[float]] | None = Field(
        None, description="Upper end of the range of the members"
    )


class RecordFacts(BaseModel):
    """What became of the rows."""

    rows: int = Field(description="Rows of the request")
    tokens: int = Field(description="Rows that the model would read")
    unknown_rows: int = Field(description="Those of them with a code that the run does not know")
    unknown_codes: int = Field(description="How many different codes these are")
    visits: int
    fixes: dict[str, int] = Field(description="Automatic fixes, as `ehrseq check` counts them")


class PredictResponse(BaseModel):
    """Risk curves of one subject."""

    task: str
    run: str = Field(description="Fingerprint of the run")
    causes: list[str]
    horizons_days: list[float] | None = Field(
        description="null for the `visit` head: until the next visit"
    )
    start_days: float = Field(
        description="Risks are given no event for so long after the prediction time"
    )
    predictions: list[Prediction]
    why_none: str | None = Field(
        None, description="Where there is no prediction: what the record lacks"
    )
    warnings: list[str]
    record: RecordFacts


class Unlike(BaseModel):
    """How a record differs from those of the training people."""

    code: str | None = Field(description="null where it is not of one code")
    why: str


class Moved(BaseModel):
    """What one code adds to the risk."""

    code: str
    change: float = Field(description="Risk with its rows less the risk without them")


class ExplainResponse(BaseModel):
    """What moved one risk of a subject."""

    cause: str
    horizon_days: float | None = Field(
        description="null for the `visit` head: until the next visit"
    )
    risk: float | None = Field(description="null where there is no prediction")
    moved: list[Moved] = Field(description="The largest change first")
    record: RecordFacts
    unlike: list[Unlike] = Field(
        description="How the record differs from those of the training people, or why it was not compared"
    )


class ProblemBody(BaseModel):
    """What a problem looks like in an answer."""

    type: str = "about:blank"
    title: str = Field(description="The name of the status")
    status: int
    detail: str = Field(description="What went wrong, without any value of the request")
    where: str | None = Field(None, description="The part of the request concerned")
    fix: str | None = Field(None, description="What to do about it")
    request_id: str = Field(description="Also in the header X-Request-ID")


class Problem(HTTPException):
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
        super().__init__(status, what, dict(headers or {}))
        self.where, self.fix = where, fix

    def response(self, request_id: str) -> JSONResponse:
        """The answer."""
        body = ProblemBody(
            title=HTTPStatus(self.status_code).phrase,
            status=self.status_code,
            detail=self.detail,
            where=self.where or None,
            fix=self.fix or None,
            request_id=request_id,
        )
        content = body.model_dump(exclude_none=True)
        return JSONResponse(content, self.status_code, self.headers, PROBLEM_TYPE)


def problem_of_validation(errors: Sequence[Mapping[str, Any]]) -> Problem:
    """The problem of a body or query that does not have the declared shape.

    Names of unknown fields are left out: like values, they may hold anything.
    """
    first = errors[0]
    parts = ["body", *(str(part) for part in first["loc"])]
    if first["type"] == "extra_forbidden":
        parts = parts[:-1]
    known = {
        "json_invalid": "is no JSON",
        "value_error": "is not valid",  # pydantic's own message could hold the value
        "assertion_error": "is not valid",
    }
    what = known.get(first["type"], str(first["msg"]))
    more = f" ({len(errors) - 1} more such errors)" if len(errors) > 1 else ""
    if first["type"] == "too_long" and parts[-1] == "rows":
        what = f"more than {first['ctx']['max_length']:,} rows"
        fix = "leave out rows that the model does not read"
        return Problem(413, what, where="rows", fix=fix)
    fix = "see /openapi.json for the shape of a request"
    if first["type"] == "clock_time":
        fix = "write it as 2024-03-01 or 2024-03-01T09:30:00"
    return Problem(422, what + more, where=".".join(parts), fix=fix)
