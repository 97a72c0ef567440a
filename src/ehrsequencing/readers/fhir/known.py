"""What the mapping of FHIR gives, a `Row`, and what resources say of others: `Known`, records of one person, bills."""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ehrsequencing.readers.fhir.elements import (
    Coded,
    Resource,
    codings,
    is_absent,
    number_of,
    referred,
    referred_id,
    text,
    texts,
    walk,
)
from ehrsequencing.readers.rows import TERMS, Role

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
    # (entries,) places in `survey.LOST`: why a resource does not count
    lost: NDArray[np.int8] = field(default_factory=lambda: np.zeros(0, np.int8))
    newer_parts: int = (
        0  # copies with a part of the elements only that are newer than the whole resource
    )
    counts: dict[str, int] = field(default_factory=dict)  # how often some rules of the report hold

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


# ---- which records of patients are of one person, and which bills replace others ----
_TERMS = TERMS["fhir"]["identity"]


class Record(NamedTuple):
    """A patient's record."""

    birth: str | None
    sex: str | None
    numbers: tuple[tuple[str, str], ...]  # record numbers, with the system of each


def record_of(resource: Resource) -> Record:
    """What a Patient says of who it is."""
    numbers = tuple(
        (text(one, "system") or "", value)
        for one in walk(resource, "identifier")
        if _TERMS["record_number"] in texts(one, "type.coding.code")
        and (value := text(one, "value"))
        and not re.fullmatch(_TERMS["placeholder"], value.lower())
    )
    return Record(text(resource, "birthDate"), text(resource, "gender"), numbers)


def linked_records(resource: Resource, kind: str, own: str) -> Iterator[tuple[str, str, str]]:
    """Pairs of records that a Patient or a Person links, with the type of the link."""
    if kind == "Patient":
        for link in walk(resource, "link"):
            other, type_ = referred_id(link, "other", "Patient"), text(link, "type")
            if other is not None and type_ == "replaces":
                yield other, own, "replaced-by"
            elif other is not None and type_ in ("replaced-by", "seealso", "refer"):
                yield own, other, type_
    else:
        sure = [
            target
            for link in walk(resource, "link")
            if text(link, "assurance") in _TERMS["assured"]
            and (target := referred_id(link, "target", "Patient")) is not None
        ]
        for other in sure[1:]:
            yield sure[0], other, "seealso"


def join_records(
    records: dict[str, Record], links: Iterable[tuple[str, str, str]]
) -> tuple[dict[str, str], set[str], dict[str, int]]:
    """Join the records of each person.

    Records with one number are joined where birth and sex are known and equal and at most three share it.

    Returns:
        Record → the record that stands for it, without those that stand for themselves; the records that must not be
        used any more; and how many people have more than five records, and records share a number that are not joined.
    """
    links = [link for link in links if link[0] in records and link[1] in records]
    superseded = {one for one, _, type_ in links if type_ == "replaced-by"}
    lesser = superseded | {one for one, _, type_ in links if type_ == "refer"}
    by_number = defaultdict[tuple[str, str], list[str]](list)
    for name, record in records.items():
        for number in record.numbers:
            by_number[number].append(name)
    doubtful = set[str]()
    for names in by_number.values():
        people = {records[name][:2] for name in names}
        if len(people) == 1 and None not in people.pop() and len(names) <= _TERMS["most_shared"]:
            links += [(names[0], other, "seealso") for other in names[1:]]
        else:
            doubtful.update(names if len(names) > 1 else ())
    group = {name: {name} for link in links for name in link[:2]}
    for one, other, _ in links:
        if group[one] is not group[other]:
            group[one] |= group[other]
            for name in group[other]:
                group[name] = group[one]
    merged, many = dict[str, str](), 0
    for members in {id(members): members for members in group.values()}.values():
        main = min(members - lesser or members - superseded or members)
        merged |= dict.fromkeys(members - {main}, main)
        superseded.discard(main)
        many += len(members) > _TERMS["most_linked"]
    return merged, superseded, {"linked_many": many, "shared_number": len(doubtful - {*group})}


class Bill(NamedTuple):
    """A Claim or an ExplanationOfBenefit."""

    patient: str | None
    provider: str | None
    start: str
    end: str
    created: str
    frequency: str  # the last digit of its type: 7 replaces another bill, 8 voids one
    # bills that it names, as Claim/ID, and whether each replaces it; else it follows it
    related: tuple[tuple[str, bool], ...]


def bill_of(resource: Resource) -> Bill:
    """What a bill says of itself and others."""
    start = text(resource, "billablePeriod.start") or ""
    types = [
        code
        for one in walk(resource, "supportingInfo")
        if "typeofbill" in texts(one, "category.coding.code")
        for code in texts(one, "code.coding.code")
    ]
    related, frequency = list[tuple[str, bool]](), types[0][-1] if types else ""
    for one in walk(resource, "related"):
        relation = (text(one, "relationship.coding.code") or "").replace("-", "")
        frequency = _TERMS["frequency"].get(relation, frequency)
        target = referred(text(one, "claim.reference") or "")
        if target is not None:
            related.append(("/".join(filter(None, target)), relation == "replacedby"))
    return Bill(
        referred_id(resource, "patient", "Patient"),
        text(resource, "provider.reference"),
        start[:10],
        (text(resource, "billablePeriod.end") or start)[:10],
        text(resource, "created") or "",
        frequency,
        tuple(related),
    )


def replaced_bills(bills: dict[str, Bill]) -> set[str]:
    """The bills that others replace or void, and those that void them.

    Both are of one person, provider and overlapping period; a bill of a later period goes on with an interim one.
    """
    out = {name for name, bill in bills.items() if bill.frequency == "8"}
    pairs = [
        (other, name) if is_later else (name, other)
        for name, bill in bills.items()
        for other, is_later in bill.related
    ]
    groups = defaultdict[tuple[str | None, str | None], list[str]](list)
    for name, bill in bills.items():
        groups[bill[:2]].append(name)
    for name, bill in bills.items():
        if bill.frequency in ("7", "8") and all(
            is_later for _, is_later in bill.related
        ):  # it does not say which
            pairs += [
                (name, other)
                for other in groups[bill[:2]]
                if bills[other].created < bill.created and bills[other].frequency not in ("7", "8")
            ]
    for new, old in pairs:
        one, other = bills.get(new), bills.get(old)
        if one is not None and other is not None and one[:2] == other[:2]:
            out.update([old] if one.start <= other.end and other.start <= one.end else ())
    return out


# ---- Values of observations: a number becomes CODE//UNIT, a coded value CODE//VALUE, anything else stays a text. ----
def value_of(part: Resource) -> tuple[str, Any]:
    """The value of an Observation or a component, and the element that holds it; None without one."""
    for name, value in part.items():
        if name.startswith("value") and value is not None:
            return name, value
    return "", None


def has_no_result(part: Resource) -> bool:
    """Whether an Observation or a component says that its result is absent, with a reason or by a null flavour."""
    name, value = value_of(part)
    no_value = value is None and part.get("dataAbsentReason") is not None
    return no_value or (name == "valueCodeableConcept" and is_absent(value))


def valued(row: Row, part: Resource) -> Row:
    """A row with the value of an Observation or a component: CODE//UNIT for a number, CODE//VALUE for a coded value.

    A bound is no number: <5. What cannot be read stays as text, a date as it is written. A code of unknown meaning gets
    no value.
    """
    name, value = value_of(part)
    is_ratio = name in ("valueRatio", "valueRange") and isinstance(value, dict)
    quantity: Any = _quantity_of(value) if is_ratio else value
    coded = codings(value) if name == "valueCodeableConcept" else ()
    words = text(value, "text") if name == "valueCodeableConcept" else None
    if isinstance(value, bool):
        coded = (Coded(str(value).lower(), str(value).lower()),)
    elif name == "valueString" and isinstance(value, str):
        words = value.strip()
    number = number_of(value) if name == "valueInteger" else None
    if (is_ratio or name == "valueQuantity") and isinstance(quantity, dict):
        written, comparator = quantity.get("value"), text(quantity, "comparator")
        number, unit = number_of(written), text(quantity, "code") or text(quantity, "unit")
        made = row._replace(cell="values", number=number)
        if written is None:
            made = row._replace(cell="empty")
        elif number is None or comparator is not None:
            made = row._replace(cell="unread", text=f"{comparator or ''}{written}")
        elif unit is not None:
            made = made._replace(code=f"{row.code}//{unit}", parent=row.code)
    elif is_ratio:
        made = row._replace(cell="unread", text=quantity or json.dumps(value))
    elif coded:
        meaning = ": ".join(filter(None, (row.description, coded[0].description))) or None
        code = f"{row.code}//{coded[0].code}"
        made = row._replace(cell="values", code=code, description=meaning, parent=row.code)
    elif number is not None or words:
        made = row._replace(cell="values", number=number, text=words)
    elif value is None:
        made = row._replace(cell="empty")
    else:
        as_is = value if isinstance(value, str) else json.dumps(value)
        made = row._replace(cell="unread", text=as_is)
    is_known = row.code is not None and not row.code.startswith(UNCODED)
    return made if is_known else row._replace(cell=made.cell)


def _quantity_of(value: Resource) -> dict[str, Any] | str | None:
    """A ratio or a range as a number with its unit, else as a text such as 1:8 or >=3; None where it is neither.

    A titre is one to a number; a range of one number is this number.
    """
    parts = [value.get(name) or {} for name in ("numerator", "denominator", "low", "high")]
    above, below, low, high = (number_of(part.get("value")) for part in parts)
    units = [text(part, "code") or text(part, "unit") for part in parts]
    is_plain = not any(text(part, "comparator") for part in parts)
    if (
        above is not None
        and below
        and is_plain
        and (all(units[:2]) or (above == 1 and not any(units)))
    ):
        both = f"{units[0]}/{units[1]}"
        return (
            {"value": above / below, "unit": both}
            if units[0]
            else {"value": below, "unit": "{titer}"}
        )
    if low is not None and low == high:
        return {"value": low, "unit": units[2] or units[3]}
    if low is not None and high is not None:
        return None
    return f">={low:g}" if low is not None else f"<={high:g}" if high is not None else None
