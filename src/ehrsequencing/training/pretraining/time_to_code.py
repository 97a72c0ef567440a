"""Time to every code: how long after each visit every code will be recorded next."""

import numpy as np
import torch
from torch import Tensor

from ehrsequencing.config.parts import objective
from ehrsequencing.core.arrays import Floats
from ehrsequencing.models.hazards import exposure
from ehrsequencing.models.outcomes import OutcomeHead, OutcomeLabels, outcomes_nll, starting_rates
from ehrsequencing.models.segments import gather_rows, to_device
from ehrsequencing.training.pretraining.objective import (
    CodeObjective,
    Measures,
    ObjectiveInputs,
    RecordBatch,
    ranks_of,
    subjects_of,
)
from ehrsequencing.training.pretraining.targets import (
    TimesToCodes,
    times_to_codes,
)

# of the hazards: quantiles of the training subjects' times to the next record of a code
TIME_BINS = 6
RANK = 32  # width of a code's vector, at most that of a state


@objective("time_to_code")
class TimeToCode(CodeObjective):
    """A hazard for the next record of every code, from one head of low rank (MOTOR, arXiv 2301.03150).

        loss_v = Σ_c ( ∫_0^{t_c} λ_c(s | z_v) ds − [c is recorded later] · log λ_c(t_c | z_v) )

    z_v is the state of v after the causal timeline, t_c the days until the code's next record, or until the record
    ends where there is none. The head and the likelihood are those of `models/outcomes.py` with `kind: next`: exact,
    with memory that does not grow with the codes. Hazards start at the training rates. Target codes exclude the
    outcome and its relatives (`targets.py`); without that this objective is supervised learning.
    """

    def __init__(self, inputs: ObjectiveInputs) -> None:
        super().__init__(inputs)
        waits, n = inputs.rates.waits, len(inputs.codes)
        inner = (
            np.quantile(waits.days, np.arange(1, TIME_BINS) / TIME_BINS)
            if len(waits.days)
            else np.zeros(0)
        )
        edges = tuple(float(edge) for edge in np.unique(np.round(inner, 4)) if edge > 0)
        dim = inputs.config.dim
        self.head = OutcomeHead(
            dim, outcomes=n, rank=min(RANK, dim), edges_days=edges, dropout=inputs.config.dropout
        )
        self.head.set_bias(starting_rates(*_counts(waits, edges, n)))
        self.register_buffer("start", self.head.bias.detach().clone(), persistent=False)
        self.start: Tensor
        self.most = max(16, inputs.most_visits // self.head.bins)

    def forward(self, batch: RecordBatch, measures: Measures | None = None) -> Tensor:
        """Mean loss of the visits that are not their subject's last."""
        found = times_to_codes(batch.timelines, batch.step.rows, batch.codes, most=self.most)
        n, device = len(found.chosen), self.start.device
        if not n or batch.states is None:
            return self.start.new_zeros(())
        positions = torch.from_numpy(batch.step.positions[found.chosen])
        z = gather_rows(batch.states, to_device(positions, device))
        stop = torch.from_numpy(found.stop_days).float().to(device)
        days = torch.from_numpy(found.days).float().to(device)
        row, code = (
            to_device(torch.from_numpy(index), device) for index in (found.row, found.code)
        )
        labels = OutcomeLabels(row, code, days)
        factors, vectors, edges = self.head(z), self.head.vectors.weight, self.head.edges_days
        each = outcomes_nll(
            factors, vectors, self.head.bias, edges_days=edges, stop_days=stop, labels=labels
        )
        loss = each.sum() / n
        if measures is not None:
            measures.add("loss", loss.double() * n, n)
            none = torch.zeros_like(factors)
            each = outcomes_nll(
                none, vectors, self.start, edges_days=edges, stop_days=stop, labels=labels
            )
            measures.add("frequency loss", each.double().sum(), n)
            self._measure(self.head.log_hazards(z), found, batch, measures)
        return loss

    def _measure(
        self, log_hazards: Tensor, found: TimesToCodes, batch: RecordBatch, measures: Measures
    ) -> None:
        """Recall of the codes that come first after each visit, by their hazards in the bin of that time."""
        n = len(found.chosen)
        first = np.full(n, np.inf)
        np.minimum.at(first, found.row, found.days)
        is_first = found.days <= first[found.row]
        first[np.isinf(first)] = 0.0
        bins, every = (
            torch.from_numpy(np.searchsorted(self.head.edges_days, first)),
            torch.arange(n),
        )
        by_frequency = self.start.cpu().T[bins]
        ours = log_hazards.detach().cpu()[every, :, bins]
        row, code = found.row[is_first], found.code[is_first]
        guesses = {"model": ours, "frequency": by_frequency}
        ranks = {name: ranks_of(guess, row, code) for name, guess in guesses.items()}
        measures.add_recalls(ranks, subjects_of(batch, batch.step.rows[found.chosen])[row])


def _counts(waits: TimesToCodes, edges: tuple[float, ...], n: int) -> tuple[Tensor, Tensor]:
    """(C, K) events, and days at risk, of each code in each bin of time."""
    bins = len(edges) + 1
    zero = torch.zeros(1, dtype=torch.float64)

    def days_in_bins(stop: Floats) -> Tensor:
        return exposure(edges, zero.expand(len(stop)), torch.from_numpy(stop))

    events = np.bincount(
        waits.code * bins + np.searchsorted(edges, waits.days), minlength=n * bins
    ).reshape(n, bins)
    whole = days_in_bins(waits.stop_days).sum(0)  # of a code that never comes
    missed = days_in_bins(waits.stop_days)[waits.row] - days_in_bins(waits.days)
    exposed = whole.expand(n, -1).clone().index_add_(0, torch.from_numpy(waits.code), -missed)
    return torch.from_numpy(events), exposed
