"""A running server of `ehrseq serve`, and a plain HTTP client that may send anything."""

import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ehrsequencing.serve.app import listener, server
from ehrsequencing.serve.predictor import Limits, Predictor
from ehrsequencing.serve.security import Access, Service

TOKEN = "correct horse battery staple"
HOOK = "/cds-services/ehrsequencing-risk"
ROW = {"time": "2020-01-01T10:00:00", "code": "ENROLLMENT"}


@dataclass(frozen=True)
class Reply:
    """An answer over HTTP."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Client:
    """Asks a server on a port of this machine."""

    port: int
    service: Service | None = None  # of this process alone

    def ask(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None, timeout: float = 30
    ) -> Reply:
        """Send one request; a body that is not bytes goes as JSON."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        given = {"Content-Type": "application/json"} if data is not None else {}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            connection.request(method, path, data, {**given, **(headers or {})})
            reply = connection.getresponse()
            return Reply(reply.status, {k.lower(): v for k, v in reply.getheaders()}, reply.read())
        finally:
            connection.close()


@contextmanager
def running(
    predictor: Predictor,
    access: Access | None = None,
    explorer: str | None = None,
    *,
    clock: Callable[[], datetime] = datetime.now,
) -> Iterator[Client]:
    """A server in a thread of this process."""
    with listener("127.0.0.1", 0) as found:
        own = server(predictor, access, explorer, clock=clock)
        thread = threading.Thread(target=own.run, kwargs={"sockets": [found]}, daemon=True)
        thread.start()
        while not own.started:
            time.sleep(0.01)
        try:
            yield Client(found.getsockname()[1], own.config.app.state.service)  # type: ignore[union-attr]
        finally:
            own.should_exit = True
            thread.join(timeout=60)
            assert not thread.is_alive()


def subject_rows(data: Path) -> dict[int, list[dict[str, Any]]]:
    """Each subject's rows as JSON."""
    table = pa.concat_tables([pq.read_table(path) for path in sorted((data / "data").rglob("*.parquet"))])
    table = table.select(["subject_id", "time", "code", "numeric_value"])
    found = {}
    for subject in pc.unique(table["subject_id"]).to_pylist():
        found[subject] = [as_json(row) for row in table.filter(pc.equal(table["subject_id"], subject)).to_pylist()]
    return found


def as_json(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of MEDS without its subject."""
    time, value = row["time"], row["numeric_value"]
    return {"time": time and time.isoformat(), "code": row["code"], "numeric_value": value}


def curves(reply: Reply) -> np.ndarray[Any, Any]:
    """(R, causes, horizons) risks of an answer."""
    found = reply.json
    return np.array([[one["risk"][cause] for cause in found["causes"]] for one in found["predictions"]])


def small_limits(**changed: float) -> Limits:
    """Limits that a test can reach."""
    small = {"body_bytes": 20_000, "objects": 150, "values": 1_200, "rows": 50, "visits": 10, "seconds": 2.0}
    return Limits(**{**small, **changed})  # type: ignore[arg-type]
