"""What the mapping of FHIR gives, a `Row`, and what it needs to know besides the resource, `Known`."""

from dataclasses import dataclass, field
from typing import NamedTuple

from ehrsequencing.readers.fhir.elements import Coded, referred
from ehrsequencing.readers.rows import Role

MOST_ABOVE = 20  # stays of which one is part, one in another; a longer chain counts as a circle
UNCODED = "FHIR//0//"  # the code of a concept with a text only is this and the resource's type


class Row(NamedTuple):
    """One row for the MEDS writer, with its times still as text. `None` for whatever the resource lacks."""

    role: Role
    subject: str | None
    time: str | None
    code: str | None
    description: str | None = None
    parent: str | None = None  # the code without unit or value
    end: str | None = None
    number: float | None = None
    text: str | None = None
    encounter: str | None = None
    # of role `REPORTED` when what began at `time` was recorded; of role `EVENT` when the result was issued
    recorded: str | None = None
    # what became of the cell with its value: values, empty or unread; None where it is counted elsewhere
    cell: str | None = None
    acute: bool | None = None  # as in `rows_schema`, as the next three
    inpatient: bool | None = None
    site: str | None = None
    left: int | None = None


@dataclass(frozen=True)
class Known:
    """What resources say of others, and which of several dates counts."""

    earliest: bool = (
        False  # whether the earliest counts, and not the one at which the content was known
    )
    confirmed: bool = False  # whether diagnoses that are not confirmed count as the others
    # Claim/ID or ExplanationOfBenefit/ID of bills that another bill replaces or voids
    replaced: set[str] = field(default_factory=set)
    # ids of patients' records that must not be used any more
    superseded: set[str] = field(default_factory=set)
    # id of a Medication → its codes
    codes: dict[str, tuple[Coded, ...]] = field(default_factory=dict)
    # Condition/ID → id of the encounter that names it as its diagnosis or reason
    stays: dict[str, str] = field(default_factory=dict)
    # id of a patient's record → id of the record that replaces it
    merged: dict[str, str] = field(default_factory=dict)
    # id of an encounter → id of the encounter that it is part of
    wholes: dict[str, str] = field(default_factory=dict)
    # id of an encounter with parts → its class
    classes: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def find(self, reference: str) -> tuple[Coded, ...]:
        """The codes that a reference to a Medication leads to."""
        kind, name = referred(reference) or ("", "")
        return self.codes.get(name, ()) if kind in (None, "Medication") else ()

    def record(self, name: str) -> str:
        """The id of the record that replaces a patient's, also by way of others; its own where they form a circle.

        >>> known = Known(merged={"a": "b", "b": "c", "x": "y", "y": "x"})
        >>> known.record("a"), known.record("c"), known.record("x")
        ('c', 'c', 'x')
        """
        met: set[str] = set()
        while name in self.merged and name not in met:
            met.add(name)
            name = self.merged[name]
        return name

    def is_part(self, name: str | None, kind: str) -> bool:
        """Whether an encounter is part of one of the same class, also by way of others; never if they form a circle.

        >>> classes = {"stay": ("inpatient",), "y": ("inpatient",)}
        >>> known = Known(wholes={"ward": "stay", "x": "y", "y": "x"}, classes=classes)
        >>> known.is_part("ward", "inpatient"), known.is_part("ward", "emergency"), known.is_part("x", "inpatient")
        (True, False, False)
        """
        path = [name or ""]
        while path[-1] in self.wholes and len(path) <= MOST_ABOVE:
            path.append(self.wholes[path[-1]])
        is_same = any(kind in self.classes.get(above, ()) for above in path[1:])
        return is_same and path[-1] not in self.wholes
