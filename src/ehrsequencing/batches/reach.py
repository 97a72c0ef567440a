"""How far back an answer depends on its record, and the parts into which a long record is cut by it."""

from dataclasses import dataclass

import numpy as np

from ehrsequencing.config import ModelConfig
from ehrsequencing.core.arrays import Ints


@dataclass(frozen=True)
class Reach:
    """How far back in a record an answer can depend on.

    One layer of attention looks at `window` visits, the visit's own included; L layers at the `L · (window − 1)` visits
    before. Flat BEHRT counts tokens: whole visits, up to `window` tokens a layer.
    """

    layers: int  # L
    window: int  # visits, or tokens, that one layer sees
    in_tokens: bool = False  # whether the window counts tokens

    @classmethod
    def for_model(cls, config: ModelConfig) -> "Reach | None":
        """A model's reach; None where it has none, and a record is never cut.

        Bidirectional attention looks ahead: memory then grows with the longest record.
        """
        if config.attention == "bidirectional":
            return None
        is_flat = config.architecture == "flat"
        return cls(
            config.layers, config.max_tokens if is_flat else config.max_visits, in_tokens=is_flat
        )

    @property
    def most(self) -> int:
        """The most visits (tokens) before an answer's own visit that it can depend on."""
        return self.layers * (self.window if self.in_tokens else self.window - 1)

    def first_visit(self, start: Ints, visit: int) -> int:
        """The first visit on which an answer at `visit` can depend.

        Args:
            start: (n+1,) visits (tokens) of the record before each visit.
            visit: The answer's own visit; for a query, the last one that it sees.
        """
        if not self.in_tokens:
            return max(0, visit - self.most)
        for _ in range(self.layers):
            visit = min(visit, int(np.searchsorted(start, start[visit + 1] - self.window)))
        return visit


@dataclass(frozen=True)
class RecordPart:
    """Some consecutive prediction times of one subject, and the visits that they need."""

    subject: int  # row of the subject
    visits: tuple[int, int]  # from which of the subject's visits to which (exclusive)
    rows: tuple[int, int]  # from which row of the task to which (exclusive)
    # Whether it is one query that lies in the last of these visits; other parts leave such queries out.
    unfinished: bool = False
    tokens_skipped: int = 0  # codes of the visits before, an empty visit counting as one
    # `visit` head: the subject's next visit at risk, so that this part's last visit is not its last; None at the end
    next_row: int | None = None
