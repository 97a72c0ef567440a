"""What becomes of each FHIR resource: one table, and one pure function that reads a resource by it.

`rows_of` is all there is to know about the mapping. It needs no file and no database: a service that receives one
patient's bundle uses it as `ehrseq import fhir` does.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from types import SimpleNamespace

from ehrsequencing.readers.fhir.elements import (
    Coded,
    Find,
    Resource,
    certainty_of,
    coded_as,
    codings,
    days_of,
    extensions,
    kind_of,
    provisional,
    referred_id,
    text,
    texts,
    walk,
)
from ehrsequencing.readers.fhir.known import UNCODED, Known, Row, has_no_result, value_of, valued
from ehrsequencing.readers.import_report import RuleCounts
from ehrsequencing.readers.rows import TERMS, Left, Role
from ehrsequencing.records.events import BIRTH, DEATH

_TERMS = TERMS["fhir"]
_DEFAULT = {"subject": "subject", "encounter": "encounter", "recorded": (), "issued": ()}
# resources that become one row for each of their codes, at one time
EVENTS: dict[str, SimpleNamespace] = {
    kind: SimpleNamespace(**_DEFAULT | spec) for kind, spec in _TERMS["events"].items()
}
# a resource of another type, which may hold one of these
_OTHER = SimpleNamespace(**_DEFAULT, times=("period.end", "authoredOn", "authored", "date"))
BILLS = ("Claim", "ExplanationOfBenefit")
READ = ("Patient", "Encounter", "Medication", *EVENTS)
_SEX = {"male": "M", "female": "F", "other": "other"}
_JUDGED = ("Condition", "AllergyIntolerance")  # types that say whether they are held to be true
_US_CORE = "http://hl7.org/fhir/us/core/StructureDefinition/us-core-"


def rows_of(resource: Resource, known: Known, counts: RuleCounts) -> Iterable[Row] | str:
    """The rows of a resource.

    Args:
        resource: JSON of one resource, with any defects.
        known: What other resources say.
        counts: Where the rules of `import_report.RULES` are counted that a part of a resource needs.

    Returns:
        Rows, of which the writer drops those without subject, time or code; or else the reason, a key of
        `import_report.REASONS`, why the resource has none.
    """
    kind = kind_of(resource)
    if kind is None:
        return "no_type"
    if kind not in READ:
        return "not_read"
    if kind == "Medication":
        return "looked_up"
    if (
        resource.get("doNotPerform") is True
        or any(
            path in resource and not set(values).isdisjoint(texts(resource, path))
            for path, values in _TERMS["did_not_happen"].items()
        )
        or (certainty := certainty_of(resource) if kind in _JUDGED else "") == "absent"
    ):
        return "not_done"
    if kind == "Observation" and extensions(resource, "extension", "observation-focusCode"):
        return "of_another"
    for one in walk(resource, "focus") if kind == "Observation" else ():
        name = referred_id({"one": one}, "one", "Patient")
        if name is None or known.record(name) != _subject(resource, "subject", known):
            return "of_another"  # somebody or something else, as an unborn child
    if f"{kind}/{text(resource, 'id')}" in known.replaced:
        return "adjusted"
    modifiers = resource.get("modifierExtension")
    if "component" in resource and not modifiers:
        modifiers = walk(resource, "component.modifierExtension")
    if modifiers and kind in EVENTS:
        return "modified"
    read = {"Patient": _patient, "Encounter": _encounter, "Observation": _observation}
    rows = read.get(kind, _event)(resource, known, counts)
    if isinstance(rows, str) or not certainty or known.confirmed:
        return rows
    counts["provisional"] += 1
    sure = [Coded(row.code or "", row.description) for row in rows]
    made = [provisional(coded) if coded.code else coded for coded in sure]
    return [
        row._replace(code=coded.code or None, description=coded.description)
        for row, coded in zip(rows, made, strict=True)
    ]


def rows_inside(
    resource: Resource, known: Known, counts: RuleCounts
) -> Iterator[tuple[Resource, Iterable[Row] | str]]:
    """The resources inside another one with their rows, as `rows_of` gives them.

    They take subject, encounter and time from the other one where they lack them. Their ids mean nothing outside, and
    a Medication is read where it is referred to.
    """
    for part in walk(resource, "contained"):
        if kind_of(part) in (None, "Medication"):
            continue
        subject = {} if "subject" in part else {"subject": resource.get("subject")}
        rows = rows_of({**part, **subject, "id": None}, known, counts)
        if not isinstance(rows, str):
            whole = base_of(resource, known, Counter())
            rows = [
                row._replace(
                    subject=row.subject or whole.subject,
                    encounter=row.encounter or whole.encounter,
                    time=row.time or whole.time,
                    recorded=row.recorded
                    or whole.recorded
                    or (whole.time if row.role == Role.REPORTED else None),
                )
                for row in rows
            ]
        yield part, rows


def _codes(part: Resource, kind: str, find: Find) -> list[Coded]:
    """The codes of a resource of `EVENTS`, or of a component of it."""
    concepts = [concept for path in EVENTS[kind].concepts for concept in walk(part, path)]
    return coded_as(concepts, find, uncoded=UNCODED + kind.upper())


def _coded_rows(base: Row, codes: Iterable[Coded]) -> list[Row]:
    """A row for each code; one without a code where there is none, so that it is counted."""
    rows = [base._replace(code=coded.code, description=coded.description) for coded in codes]
    return rows or [base]


# ---- when and whose ------------------------------------------------------------------------------


def _time_of(resource: Resource, paths: Sequence[str]) -> str | None:
    """The first time with a day among these elements, else the first with a month or a year."""
    times = [time for path in paths for time in texts(resource, path)]
    return next((time for time in times if len(time) > len("2011-05")), times[0] if times else None)


def _subject(resource: Resource, path: str, known: Known) -> str | None:
    """The id of the patient's record that counts."""
    subject = referred_id(resource, path, "Patient")
    return known.record(subject) if subject is not None else None


def base_of(resource: Resource, known: Known, counts: RuleCounts) -> Row:
    """A row of a resource of `EVENTS`, or of another one that holds such, without its code.

    By the last day that a date may mean an event was certainly known. What was reported has both days. What has an
    encounter and no date was known by the encounter's end: it is `REPORTED` without a time. A reference to an encounter
    that leads nowhere stays as it is written, so that the writer counts it.
    """
    kind = kind_of(resource) or ""
    spec = EVENTS.get(kind, _OTHER)
    subject = _subject(resource, spec.subject, known)
    encounter = (
        referred_id(resource, spec.encounter, "Encounter")
        or known.stays.get(f"{kind}/{text(resource, 'id')}")
        or text(resource, f"{spec.encounter}.reference")
    )
    first, last = days_of(_time_of(resource, spec.times))
    written = _time_of(resource, spec.recorded or spec.issued)
    if spec.recorded and written is None and "extension" in resource:
        written = text(extensions(resource, "extension", "-assertedDate"), "valueDateTime")
    is_first = known.earliest and last is not None
    recorded_first, recorded = days_of(None if is_first else written)
    is_reported = bool(spec.recorded) and not is_first
    is_partial = recorded_first != recorded if is_reported and recorded else first != last
    counts["partial_date"] += is_partial
    if is_reported:
        return Row(
            Role.REPORTED,
            subject,
            first,
            None,
            end=last if last != first else None,
            encounter=encounter,
            recorded=recorded,
        )
    is_undated = last is None and encounter is not None
    role = Role.REPORTED if is_undated else Role.EVENT
    return Row(role, subject, last, None, encounter=encounter, recorded=recorded)


# ---- the types of resources ----------------------------------------------------------------------


def _patient(resource: Resource, known: Known, counts: RuleCounts) -> list[Row] | str:
    """Birth, death, and what never changes."""
    subject = text(resource, "id")
    if subject in known.superseded:
        return "replaced"
    if subject is not None and known.record(subject) != subject:
        counts["linked"] += 1
        subject = known.record(subject)
    first_born, last_born = days_of(text(resource, "birthDate"))
    first_died, died = days_of(text(resource, "deceasedDateTime"))
    counts["partial_date"] += (first_born != last_born) + (first_died != died)
    rows = [Row(Role.PERSON, subject, first_born, BIRTH)]
    if died is not None or resource.get("deceasedBoolean") is True:
        end = died if died != first_died else None
        rows.append(Row(Role.DEATH, subject, first_died, DEATH, end=end))
    sex = _SEX.get((text(resource, "gender") or "").lower())
    if sex is not None:
        rows.append(Row(Role.STATIC, subject, None, f"GENDER//{sex}"))
    for extension in walk(resource, "extension"):
        url = text(extension, "url") or ""
        if url not in (f"{_US_CORE}race", f"{_US_CORE}ethnicity"):
            continue
        name = url.removeprefix(_US_CORE).upper()
        for coding in walk(extension, "extension.valueCoding"):
            code = text(coding, "code")
            made = f"{name}//{code}" if codings(coding) else None
            rows.append(Row(Role.STATIC, subject, None, made, text(coding, "display")))
    return rows


def _encounter(resource: Resource, known: Known, counts: RuleCounts) -> list[Row]:
    """The stay, its types as events at its start, and the classes that it had before its own."""
    subject, encounter = _subject(resource, "subject", known), text(resource, "id")
    first, last = days_of(text(resource, "period.start"))
    is_open = text(resource, "status") in _TERMS["open"]  # its end is planned
    first_end, end = days_of(None if is_open else text(resource, "period.end"))
    counts["partial_date"] += (first != last) + (first_end != end)
    kind = class_of(resource)
    part = "//PART" if known.is_part(encounter, kind) else ""
    visit = Row(
        Role.VISIT,
        subject,
        first,
        f"ENCOUNTER//{kind}{part}",
        end=end,
        encounter=encounter,
        acute=kind in _TERMS["acute"],
        inpatient=kind == "inpatient"
        and set(_TERMS["subacute"]).isdisjoint(texts(resource, "class.code")),
        site=text(resource, "serviceProvider.reference"),
        left=_left(resource),
    )
    # each class of its history from the moment at which the encounter had it
    visits, since = list[Row](), None
    for item in walk(resource, "classHistory"):
        start = days_of(text(item, "period.start"))[0]
        if start is not None and class_of(item) == kind:
            since = since or start
        elif start is not None:
            earlier = visit._replace(time=start, inpatient=False, left=None)
            visits.append(
                earlier._replace(
                    end=days_of(text(item, "period.end"))[1],
                    code=f"ENCOUNTER//{class_of(item)}",
                    acute=class_of(item) in _TERMS["acute"],
                )
            )
    if visits and since is None:
        since = visits[-1].end
    visits.append(visit._replace(time=since or visit.time))
    types = coded_as(walk(resource, "type"), known.find, uncoded=f"{UNCODED}ENCOUNTER")
    event = Row(Role.EVENT, subject, last, None, encounter=encounter)
    return [*visits, *(_coded_rows(event, types) if types else [])]


def class_of(resource: Resource) -> str:
    """The class of an encounter."""
    written = [one.code.rpartition("//")[2] for one in codings(resource.get("class"))]
    return _TERMS["classes"].get(written[0].upper(), written[0].lower()) if written else "unknown"


def _left(resource: Resource) -> Left | None:
    """How a stay ended, as its status and its discharge say; None where they do not say."""
    if text(resource, "status") in _TERMS["open"]:
        return Left.STILL
    said = {
        word.lower()
        for holder in ("hospitalization", "admission")
        for path in ("coding.code", "coding.display", "text")
        for word in texts(resource, f"{holder}.dischargeDisposition.{path}")
    }
    for left in (Left.DIED, Left.STILL, Left.MOVED):
        if any(re.fullmatch(_TERMS[left.name.lower()], word) for word in said):
            return left
    return Left.ALIVE if any(not re.fullmatch(_TERMS["unsaid"], word) for word in said) else None


def _event(resource: Resource, known: Known, counts: RuleCounts) -> list[Row] | str:
    """The codes of a resource at its time. A medication may lie inside it."""
    kind = kind_of(resource) or ""
    inside = {
        f"#{item['id']}": codings(item.get("code"))
        or codings(walk(item, "ingredient.itemCodeableConcept"))
        for item in walk(resource, "contained")
        if text(item, "id")
    }
    if kind in BILLS and not walk(resource, EVENTS[kind].concepts[0]):
        return "no_diagnosis"
    codes = _codes(resource, kind, lambda name: inside.get(name) or known.find(name))
    return _coded_rows(base_of(resource, known, counts), codes)


def _observation(resource: Resource, known: Known, counts: RuleCounts) -> list[Row] | str:
    """The results of an Observation: those of its components, and its own if it has one or no component."""
    parts = [part for part in walk(resource, "component") if isinstance(part, dict)]
    if not parts or value_of(resource)[1] is not None:
        parts.insert(0, dict(resource))
    results = [part for part in parts if not has_no_result(part)]
    if not results:
        return "no_result"
    counts["no_result"] += len(parts) - len(results)
    base, all_rows = base_of(resource, known, counts), []
    for part in results:
        counts["bound"] += text(part, "valueQuantity.comparator") is not None
        rows = _coded_rows(base, _codes(part, "Observation", known.find))
        all_rows.append(valued(rows[0], part))  # the cell with the value is counted once
        all_rows += [valued(row, part)._replace(cell=None) for row in rows[1:]]
    return all_rows
