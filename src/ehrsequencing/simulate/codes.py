"""The codes of a simulation: one numbered list, in which each kind has its place."""

from ehrsequencing.simulate.settings import SimulationConfig

BIRTH, DEATH_CODE, OUTCOME_CODE = "MEDS_BIRTH", "MEDS_DEATH", "DX//OUTCOME"
ENROLMENT, END_OF_FOLLOW_UP = "ENROLLMENT", "END_OF_FOLLOWUP"
FEMALE, MALE, MARKER, OTHER_LAB = "SEX//F", "SEX//M", "LAB//MARKER", "LAB//OTHER"

_SINGLE = {
    BIRTH: "Birth",
    DEATH_CODE: "Death",
    OUTCOME_CODE: "The outcome",
    ENROLMENT: "Enrolment, at the end of a visit",
    END_OF_FOLLOW_UP: "End of follow-up: the study's end or drop-out",
    FEMALE: "Female",
    MALE: "Male",
    MARKER: "Laboratory marker, mean 100 and sd 15: the last value before a moment sets the hazard",
    OTHER_LAB: "Laboratory value without meaning",
}
_BACKGROUND_KINDS = ("DX", "RX", "PROC")


class CodeTable:
    """Names and descriptions by number, the number of each single code, and the first number of each family."""

    def __init__(self, config: SimulationConfig) -> None:
        self.names: list[str] = []
        self.descriptions: list[str] = []
        self.single = {name: self._add({name: text}) for name, text in _SINGLE.items()}
        self.pair_a = self._add({f"DX//A{k:02d}": f"Pair {k}: first half" for k in range(config.pairs)})
        self.pair_b = self._add({f"RX//B{k:02d}": f"Pair {k}: second half" for k in range(config.pairs)})
        self.chronic = self._add(
            {f"DX//CHRONIC{c:02d}": f"Chronic condition {c}" for c in range(config.chronic_conditions)}
        )
        self.background = self._add(
            {
                f"{_BACKGROUND_KINDS[b % 3]}//N{b:04d}": "Background: without meaning"
                for b in range(config.background_codes)
            }
        )

    def _add(self, codes: dict[str, str]) -> int:
        first = len(self.names)
        self.names += codes.keys()
        self.descriptions += codes.values()
        return first
