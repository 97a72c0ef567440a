"""What a run says of records, by its network or by its blend: risks, likelihoods, hazards; of its members, too."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from torch import nn

from ehrsequencing.baselines.blend.blend import Blend, in_parts, network_hazards
from ehrsequencing.core.arrays import Floats, Floats32, Ints
from ehrsequencing.core.hazards import cumulative_incidence, horizon_nll
from ehrsequencing.models.base import SurvivalModel
from ehrsequencing.records.timelines import TaskRecords
from ehrsequencing.training.inference import batches, nll_of_rows, risk_of_rows
from ehrsequencing.training.recalibration import Recalibrated


@dataclass(frozen=True)
class RunAnswers:
    """A run's network, and its blend where it is one.

    Attributes:
        model: The network, in evaluation mode.
        blend: The other parts and the weights; None where the network answers alone.
        code_types: (V,) type of each token, where the network wants types.
        members: Of an ensemble: its networks. Each answers as the run does, in a blend beside the same other parts.
    """

    model: SurvivalModel
    blend: Blend | None
    code_types: Ints | None
    members: tuple[SurvivalModel, ...]

    @classmethod
    def of(cls, model: SurvivalModel, blend: Blend | None, code_types: Ints | None) -> "RunAnswers":
        """Of a model that may be an ensemble."""
        found = getattr(model, "members", None)
        listed = found if isinstance(found, nn.ModuleList) else ()
        return cls(
            model, blend, code_types, tuple(m for m in listed if isinstance(m, SurvivalModel))
        )

    def risk(
        self,
        records: TaskRecords,
        *,
        horizons_days: Sequence[float] | Floats,
        start_days: float = 0.0,
    ) -> Floats32:
        """Risk at every prediction time; see `answers.risk_of_rows`."""
        found: Floats32 = self._risks((self.model,), records, horizons_days, start_days)[0]
        return found

    def with_members(
        self,
        records: TaskRecords,
        *,
        horizons_days: Sequence[float] | Floats,
        start_days: float = 0.0,
    ) -> tuple[Floats32, Floats32]:
        """Risk (R, causes, horizons), and that of each member (members, R, causes, horizons)."""
        found = self._risks((self.model, *self.members), records, horizons_days, start_days)
        return found[0], found[1:]

    def _risks(
        self,
        models: Sequence[SurvivalModel],
        records: TaskRecords,
        horizons_days: Sequence[float] | Floats,
        start_days: float,
    ) -> Floats32:
        if self.blend is None:
            of_rows = [
                risk_of_rows(
                    model,
                    records,
                    horizons_days=horizons_days,
                    code_types=self.code_types,
                    start_days=start_days,
                )
                for model in models
            ]
            return np.stack(of_rows)
        days, edges = np.asarray(horizons_days, dtype=np.float64), self.blend.edges_days
        out = np.empty(
            (len(models), len(records), self.model.config.causes, len(days)), dtype=np.float32
        )
        for rows, found in self.blend.hazards(models, records, code_types=self.code_types):
            for m, hazards in enumerate(found):
                out[m, rows] = cumulative_incidence(hazards, edges, days, start_days=start_days)
        return out

    def batches(self, records: TaskRecords) -> tuple[Ints, Ints]:
        """First subject (b,) and cost (b,) of each batch: records cut there get the same answers to the last bit."""
        if self.blend is None:
            return batches(self.model, records, code_types=self.code_types)
        rows = [rows for rows, _ in in_parts(records)]
        first = (
            np.searchsorted(records.rows.row_offsets, [one.start for one in rows], side="right") - 1
        )
        return first, np.array([one.stop - one.start for one in rows], dtype=np.int64)

    def nll(self, records: TaskRecords) -> Floats:
        """Negative log-likelihood (R,) of every labelled prediction time; see `answers.nll_of_rows`."""
        if self.blend is None:
            return nll_of_rows(self.model, records, code_types=self.code_types)
        labels, out = records.rows, np.empty(len(records))
        for rows, hazards in self.hazards(records):
            out[rows] = horizon_nll(
                hazards,
                self.blend.edges_days,
                duration_days=np.asarray(labels.duration_days[rows]),
                cause=labels.cause[rows],
                entry_days=labels.entry_days[rows],
            )
        return out

    def hazards(self, records: TaskRecords) -> Iterator[tuple[slice, Floats]]:
        """Some rows at a time, and their hazards (r, causes, bins) per day; the `visit` head has none."""
        if self.blend is None:
            yield (
                slice(0, len(records)),
                network_hazards(self.model, records, code_types=self.code_types),
            )
        else:
            for rows, found in self.blend.hazards(
                (self.model,), records, code_types=self.code_types
            ):
                yield rows, found[0]

    def recalibrated(self, intercept: Floats, slope: Floats) -> "RunAnswers":
        """The same with log λ' = a + b · log λ, a and b (causes,); in a blend λ is the blended hazard.

        Raises:
            EhrseqError: The head is `visit`.
        """
        if self.blend is not None:
            return replace(self, blend=replace(self.blend, correction=(intercept, slope)))
        model, *members = (
            Recalibrated(model, intercept, slope).eval() for model in (self.model, *self.members)
        )
        return replace(self, model=model, members=tuple(members))
