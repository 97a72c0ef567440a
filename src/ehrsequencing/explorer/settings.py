"""What an explorer shows of a data set, and what it hides."""

from dataclasses import dataclass

from ehrsequencing.core.disclosure import SMALLEST_COUNT
from ehrsequencing.core.errors import EhrseqError


@dataclass(frozen=True)
class ExplorerSettings:
    """What an explorer shows, and what it hides.

    Attributes:
        patients: At most so many patients; where there are more, they are drawn at random.
        fewest: A code that fewer patients have is shown as "rare code".
        individuals: Whether the page holds patients, not only the cohort.
        what_if: Whether single removals are computed in advance.
        megabytes: The what-if answers cover every prediction time where the file stays below this size; else only the
            latest one of each patient.
        recalibrated: Whether to use what `ehrseq evaluate --recalibrate` fitted.

    Raises:
        EhrseqError: A number is out of range.
    """

    patients: int = 10_000
    fewest: int = SMALLEST_COUNT
    individuals: bool = True
    what_if: bool = True
    megabytes: float = 15.0
    recalibrated: bool = False

    def __post_init__(self) -> None:
        for name, value in (("patients", self.patients), ("fewest", self.fewest)):
            if value < 1:
                raise EhrseqError(f"{name} is {value}", where="explorer", fix="use 1 or more")
        if self.megabytes <= 0:
            raise EhrseqError(
                f"megabytes is {self.megabytes:g}", where="explorer", fix="use a number above 0"
            )
