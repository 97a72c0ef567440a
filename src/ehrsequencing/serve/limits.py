"""How much one request may ask of the server."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Bounds of a request and of all requests that wait.

    Attributes:
        body_bytes: Size of a request's body.
        rows: Rows of a record.
        visits: Visits of a record.
        horizons: Horizons asked for.
        numbers: Risks in one answer: prediction times × causes × horizons.
        waiting: Requests that may wait for the model; further ones are told to come back.
        seconds: How long a request may take to arrive, and how long it may wait for its answer.
    """

    body_bytes: int = 16 * 2**20
    rows: int = 100_000
    visits: int = 10_000
    horizons: int = 64
    numbers: int = 500_000
    waiting: int = 64
    seconds: float = 30.0
