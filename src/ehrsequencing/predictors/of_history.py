"""Predictors that know a record by its history features alone, which they share."""

from abc import abstractmethod
from collections.abc import Iterator

import numpy as np

from ehrsequencing.core.arrays import Floats, Floats32
from ehrsequencing.predictors.history import FeatureSpec, history_features
from ehrsequencing.predictors.predictor import Known, Predictor, in_parts
from ehrsequencing.records.timelines import TaskRecords, TaskRows
from ehrsequencing.records.vocabulary import Vocabulary


class OfHistory(Predictor):
    """A predictor of history features.

    Attributes:
        vocabulary: The one that encodes the records.
        columns: Which features it is given.
    """

    vocabulary: Vocabulary
    columns: FeatureSpec

    @abstractmethod
    def of_history(self, history: Floats32, rows: TaskRows) -> Floats:
        """Hazards (r, causes, bins) per day of rows with these features (r, F)."""

    def history(self, records: TaskRecords) -> Floats32:
        """(R, F) its features of all rows."""
        every = np.arange(len(records))
        return history_features(records, self.vocabulary, chosen=every, columns=self.columns)

    def hazards(self, records: TaskRecords) -> Iterator[tuple[slice, Floats]]:
        """See `Predictor`."""
        for rows, part in in_parts(records):
            yield rows, self.of_part(part, Known())

    def _of_part(self, part: TaskRecords, known: Known) -> Floats:
        if self.columns not in known.history:
            known.history[self.columns] = self.history(part)
        return self.of_history(known.history[self.columns], part.rows)
