"""What the objectives share that look from each visit at the next one: its codes, the state before it, baselines."""

import numpy as np
import torch
from torch import Tensor

from ehrsequencing.core.arrays import Ints
from ehrsequencing.models.segments import gather_rows, to_device
from ehrsequencing.training.pretraining.objective import Glance, Objective, World
from ehrsequencing.training.pretraining.targets import NextVisits, next_visits


class AheadObjective(Objective):
    """An objective that predicts from the state z_v of a visit, after the causal timeline, what visit v+1 holds."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.register_buffer(
            "share", torch.from_numpy(np.log(world.rates.share)).float(), persistent=False
        )
        self.share: Tensor

    def ahead(self, glance: Glance) -> tuple[NextVisits, Tensor] | None:
        """The visits of a batch that have a next one, and their states (n, d); None where there is none."""
        found = next_visits(
            glance.timelines, glance.step.rows, glance.codes, most=self.world.most_visits
        )
        if not len(found.chosen) or glance.states is None:
            return None
        return found, gather_rows(
            glance.states, moved(glance.step.positions[found.chosen], glance.states.device)
        )

    def baselines(self, found: NextVisits) -> dict[str, Tensor]:
        """Scores (n, C), on the CPU: frequent codes first; the codes of the last visit, then frequent ones."""
        by_frequency = self.share.cpu().expand(len(found.chosen), -1)
        by_last = by_frequency.clone()
        by_last[found.last_row, found.last_code] += 100.0
        return {"frequency": by_frequency, "last visit": by_last}


def moved(index: Ints, device: torch.device) -> Tensor:
    """Indices as a tensor on a device."""
    return to_device(torch.from_numpy(np.ascontiguousarray(index)), device)
