"""What every path of the service uses: the model's thread, the counts, and facts of the run."""

from dataclasses import dataclass
from typing import Any

from ehrsequencing.prediction.predict import Moment
from ehrsequencing.serve.fhir_record import PatientRecord, read_patient
from ehrsequencing.serve.metrics import Metrics
from ehrsequencing.serve.predictor import Answer, ModelThread, Predictor, Question


@dataclass(frozen=True)
class Service:
    """The parts of a running service."""

    predictor: Predictor
    model: ModelThread
    metrics: Metrics

    async def ask(self, question: Question) -> Answer:
        """The answer to a question, counted."""
        answer = await self.model.ask(question)
        self.metrics.answer(answer)
        return answer

    async def ask_fhir(self, bundle: dict[str, Any]) -> tuple[PatientRecord, Answer]:
        """What was read of a bundle, and the answer at the patient's last prediction time."""
        record = read_patient(bundle)
        rows, column = record.rows, self.predictor.encounter_column
        if column is not None:
            rows = rows.rename_columns({"encounter_id": column})
        return record, await self.ask(Question(rows, Moment("last")))

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
