"""What each code of a simulated record truly adds to the outcome's log hazard right after a prediction time.

A contribution is the code's term in the log hazard of `process.py`. The terms of a mechanism add up to its row in
`truth_mechanisms.parquet`. A pair's term is also what the best predictor loses that cannot read the pair: it knows that
the visit had one, but not which, and matches and mismatches of mean hazard one are equally likely. So a half whose
other half is unknown says nothing, and striking one half is as striking both.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ehrsequencing.core.arrays import Floats
from ehrsequencing.simulate.codes import ACUTE, MARKER
from ehrsequencing.simulate.process import Process, SimulationConfig

_MARKER_MEAN, _MARKER_SD = 100.0, 15.0


@dataclass(frozen=True)
class Contribution:
    """What one code, or one pair of codes, adds to the log hazard.

    Attributes:
        mechanism: `chronic`, `decay`, `lab` or `pair`; `background` for codes that mean nothing.
        codes: The code, or both halves of a pair.
        visit: Number of the visit of a pair; None for codes that are struck wherever they are.
        log_hazard: The contribution.
    """

    mechanism: str
    codes: tuple[str, ...]
    visit: int | None
    log_hazard: float


class Contributions:
    """True contributions in one simulated world.

    Args:
        config: Its settings.
    """

    def __init__(self, config: SimulationConfig) -> None:
        self.config, self._process = config, Process(config)

    def of(
        self, codes: Sequence[Sequence[str]], values: Sequence[Floats], day: Sequence[float]
    ) -> list[Contribution]:
        """Contributions at the end of the last visit.

        Args:
            codes: The codes of each visit up to then.
            values: Their numbers, NaN without one.
            day: (N,) calendar day of each visit.
        """
        every = dict.fromkeys(code for own in codes for code in own)
        found = [
            Contribution(
                "chronic", (code,), None, float(self._process.chronic_effects[int(code[-2:])])
            )
            for code in every
            if code.startswith("DX//CHRONIC")
        ]
        found += [
            Contribution("background", (code,), None, 0.0)
            for code in every
            if self._is_background(code)
        ]
        acute = [day[v] for v, own in enumerate(codes) if ACUTE in own]
        if acute:
            steps = int((day[-1] - acute[-1]) // self.config.decay_half_life_days)
            size = self.config.decay_effect * 0.5**steps if steps < 4 else 0.0
            found.append(Contribution("decay", (ACUTE,), None, size))
        measured = [
            number
            for own, numbers in zip(codes, values, strict=True)
            for code, number in zip(own, numbers.tolist(), strict=True)
            if code == MARKER
        ]
        if measured:
            last = (measured[-1] - _MARKER_MEAN) / _MARKER_SD
            found.append(Contribution("lab", (MARKER,), None, self.config.lab_effect * last))
        return found + self._pairs(codes)

    def _pairs(self, codes: Sequence[Sequence[str]]) -> list[Contribution]:
        """Pairs, the oldest first."""
        pairs = [(v, pair) for v, own in enumerate(codes) if (pair := pair_of(own)) is not None]
        signs = np.array([1.0 if a[-2:] == b[-2:] else -1.0 for _, (a, b) in pairs])
        terms = self._terms(signs)
        return [
            Contribution("pair", pair, visit, float(term))
            for (visit, pair), term in zip(pairs, terms, strict=True)
        ]

    def _terms(self, signs: Floats) -> Floats:
        """(P,) x_m s_m − log cosh x_m, with x_m = pair_effect · memory^m and m = 0 for the newest."""
        size = (
            self.config.pair_effect
            * self.config.pair_memory ** np.arange(len(signs), dtype=np.float64)[::-1]
        )
        return np.asarray(size * signs - np.logaddexp(size, -size) + np.log(2.0))

    @staticmethod
    def _is_background(code: str) -> bool:
        return code.partition("//")[2].startswith("N") or code == "LAB//OTHER"


def pair_of(codes: Sequence[str]) -> tuple[str, str] | None:
    """The two halves of a visit's pair, where it has one."""
    first = [code for code in codes if code.startswith("DX//A") and code[5:].isdigit()]
    second = [code for code in codes if code.startswith("RX//B") and code[5:].isdigit()]
    return (first[0], second[0]) if first and second else None
