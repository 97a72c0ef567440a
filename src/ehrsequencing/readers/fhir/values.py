"""Values of observations: a number becomes CODE//UNIT, a coded value CODE//VALUE, anything else stays a text."""

import json
from typing import Any

from ehrsequencing.readers.fhir.elements import (
    Coded,
    Resource,
    codings,
    is_absent,
    number_of,
    text,
)
from ehrsequencing.readers.fhir.known import UNCODED, Row


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

    What cannot be read stays as text. A code of unknown meaning gets no value.
    """
    name, value = value_of(part)
    if name == "valueQuantity" and isinstance(value, dict):
        made = _with_quantity(row, value)
    elif name in ("valueRatio", "valueRange") and isinstance(value, dict):
        simple = _quantity_of(value)
        if isinstance(simple, dict):
            made = _with_quantity(row, simple)
        else:
            made = row._replace(cell="unread", text=simple or json.dumps(value))
    else:
        made = _with_other(row, name, value)
    is_known = row.code is not None and not row.code.startswith(UNCODED)
    return made if is_known else row._replace(cell=made.cell)


def _with_quantity(row: Row, quantity: Resource) -> Row:
    """A bound is no number: <5."""
    written, comparator = quantity.get("value"), text(quantity, "comparator")
    number, unit = number_of(written), text(quantity, "code") or text(quantity, "unit")
    if written is None:
        return row._replace(cell="empty")
    if number is None or comparator is not None:
        return row._replace(cell="unread", text=f"{comparator or ''}{written}")
    row = row._replace(cell="values", number=number)
    return row if unit is None else row._replace(code=f"{row.code}//{unit}", parent=row.code)


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


def _with_other(row: Row, name: str, value: Any) -> Row:
    """A ratio, a range and a date are kept as they are written."""
    coded = codings(value) if name == "valueCodeableConcept" else ()
    words = text(value, "text") if name == "valueCodeableConcept" else None
    if isinstance(value, bool):
        coded = (Coded(str(value).lower(), str(value).lower()),)
    elif name == "valueString" and isinstance(value, str):
        words = value.strip()
    if coded:
        meaning = ": ".join(filter(None, (row.description, coded[0].description))) or None
        return row._replace(
            cell="values", code=f"{row.code}//{coded[0].code}", description=meaning, parent=row.code
        )
    number = number_of(value) if name == "valueInteger" else None
    if number is not None or words:
        return row._replace(cell="values", number=number, text=words)
    if value is None:
        return row._replace(cell="empty")
    return row._replace(cell="unread", text=value if isinstance(value, str) else json.dumps(value))
