"""The JSON that goes in and out, as pydantic models; the OpenAPI description is made of them."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, NaiveDatetime

INT64 = 2**63
Code = Annotated[str, Field(min_length=1, max_length=10_000, examples=["ICD10CM//I50.9"])]


class Row(BaseModel):
    """One row of MEDS: an event, or with a null time something that is always true, such as sex."""

    # MEDS data sets have columns of their own, such as text_value
    model_config = ConfigDict(extra="ignore")
    time: NaiveDatetime | None = Field(
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


class PredictRequest(BaseModel):
    """The record of one subject, and what is asked about it."""

    model_config = ConfigDict(extra="forbid")
    rows: list[Row] = Field(min_length=1, description="In any order")
    at: str = Field(
        "last",
        pattern=r"^(all|last|\d{4}-\d{2}-\d{2}(T\d{2}:\d{2}(:\d{2})?)?)$",
        description="`all` prediction times, the `last` one, or a moment: as of then",
        examples=["last"],
    )
    horizons_days: list[Annotated[float, Field(gt=0, allow_inf_nan=False)]] | None = Field(
        None,
        min_length=1,
        description="Days after the prediction time; default: the task's horizons",
    )
    until: NaiveDatetime | None = Field(
        None,
        description="The record is complete until then; no later prediction time is answered. Default: last row",
    )


class Prediction(BaseModel):
    """The risks at one prediction time."""

    time: str = Field(description="The prediction time")
    risk: dict[str, list[float]] = Field(
        description="Cause → cumulative incidence by each horizon, from 0 to 1"
    )
    low: dict[str, list[float]] | None = Field(None, description="Lower end of the members' band")
    high: dict[str, list[float]] | None = Field(None, description="Upper end of the members' band")


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


class Health(BaseModel):
    """The server answers."""

    status: str


class Version(BaseModel):
    """What answers."""

    ehrsequencing: str
    task: str
    run: str = Field(description="Fingerprint of the run")
    causes: list[str]
    horizons_days: list[float] | None
    recalibrated: bool
