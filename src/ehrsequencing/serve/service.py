"""What every path of the service uses: the model's thread, counts for Prometheus, and facts of the run."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

if TYPE_CHECKING:
    from ehrsequencing.serve.predictor import Answer, ModelThread, Predictor, Question

_METHODS = ("GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH")
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 1, 2, 5, 10, 30)


class Metrics:
    """What the server has done since it started. Labels are paths, methods and statuses, never anything of a request.

    Args:
        paths: Its paths; any other is counted as `other`.
    """

    def __init__(self, paths: tuple[str, ...]) -> None:
        self.paths, self.registry = paths, CollectorRegistry()
        self._requests = Counter(
            "ehrseq_requests", "Requests", ["path", "method", "status"], registry=self.registry
        )
        self._seconds = Histogram(
            "ehrseq_request_seconds",
            "Time from a request's head to the end of its answer",
            ["path"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._predictions = Counter(
            "ehrseq_predictions", "Prediction times answered", registry=self.registry
        )
        self._rows = Counter(
            "ehrseq_rows", "Rows with a code that makes a token", registry=self.registry
        )
        self._unknown = Counter(
            "ehrseq_unknown_rows",
            "Those of them with a code that the run does not know",
            registry=self.registry,
        )
        self._waiting = Gauge(
            "ehrseq_waiting", "Requests that wait for the model", registry=self.registry
        )

    def watch(self, waiting: Callable[[], int]) -> None:
        """Ask for the number of waiting requests whenever the metrics are read."""
        self._waiting.set_function(waiting)

    def request(self, path: str, method: str, status: int, seconds: float) -> None:
        """Count a request."""
        path = path if path in self.paths else "other"
        self._requests.labels(path, method if method in _METHODS else "other", str(status)).inc()
        self._seconds.labels(path).observe(seconds)

    def answer(self, answer: "Answer") -> None:
        """Count what a request's rows were."""
        self._predictions.inc(len(answer.risks))
        self._rows.inc(answer.tokens)
        self._unknown.inc(answer.unknown_rows)

    def text(self) -> bytes:
        """The exposition."""
        return generate_latest(self.registry)


@dataclass(frozen=True)
class Service:
    """The parts of a running service."""

    predictor: "Predictor"
    model: "ModelThread"
    metrics: Metrics

    async def ask(self, question: "Question") -> "Answer":
        """The answer to a question, counted."""
        answer = await self.model.run(lambda: self.predictor.answer(question))
        self.metrics.answer(answer)
        return answer

    def facts(self) -> dict[str, Any]:
        """What an answer says of the run."""
        asked = self.predictor.asked
        days = [day for day in asked.horizons_days if day is not None]
        run = self.predictor.run
        return {
            "task": run.task.name,
            "run": run.fingerprint,
            "causes": list(asked.causes),
            "horizons_days": days or None,
        }
