"""What an evaluation is about: a predictor, the question that it answers, and what is known of it."""

from dataclasses import dataclass
from typing import Any

from ehrsequencing.config import StudyConfig, TaskConfig
from ehrsequencing.core.arrays import Floats
from ehrsequencing.evaluation.comparison import OURS
from ehrsequencing.prediction.run import Run
from ehrsequencing.predictors.from_file import FromFile
from ehrsequencing.predictors.predictor import Predictor
from ehrsequencing.records.vocabulary import Vocabulary


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """The predictor that an evaluation is about.

    Attributes:
        name: Its name in every table.
        predictor: What answers.
        where: What error messages point to.
        task: The question that it answers.
        study: Settings that go with it.
        vocabulary: Names of the tokens of the records.
        config: The settings that the report lists.
        run: The run, with what only a run can tell (history, seeds, audit); None for predictions alone.
    """

    name: str
    predictor: Predictor
    where: str
    task: TaskConfig
    study: StudyConfig
    vocabulary: Vocabulary
    config: dict[str, Any]
    run: Run | None = None

    @classmethod
    def of_run(cls, run: Run) -> "Evaluated":
        """A run.

        Raises:
            EhrseqError: It has the `visit` head, whose risks have no horizons in days.
        """
        return cls(
            name=OURS,
            predictor=run.predictor,
            where=str(run.folder),
            task=run.task,
            study=run.study,
            vocabulary=run.vocabulary,
            config=run.study.model_dump(mode="json"),
            run=run,
        )

    @property
    def is_curve(self) -> bool:
        """Whether risks are known at every day up to the last horizon, and not only at the horizons."""
        return not isinstance(self.predictor, FromFile) or self.predictor.is_curve

    @property
    def knots_days(self) -> Floats | None:
        """Where every model's likelihood is that of a curve through its risks; None: each by its own hazards."""
        return self.predictor.horizons_days if isinstance(self.predictor, FromFile) else None
