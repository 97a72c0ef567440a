"""Questions about a data set's codes: which fit a text, and which task templates they fill in.

Counts of 1 to 10 people of real data are hidden, and the number of rows of such a code. A code of fewer than 5 people
is named only if `metadata/codes.parquet` lists it, as in messages about task files.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from string import Template

from ehrsequencing.config import DataConfig
from ehrsequencing.core.disclosure import SMALLEST_COUNT
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.records.codes import (
    CodeMatcher,
    read_descriptions,
    read_parents,
    what_comes_close,
)
from ehrsequencing.records.deaths import TERMS
from ehrsequencing.records.events import BIRTH, DAY_US, DEATH, FOLLOW_UP, MOVED
from ehrsequencing.records.follow_up import LONG_DAYS, MOST
from ehrsequencing.records.meds import MedsReader
from ehrsequencing.records.prepared import is_simulation
from ehrsequencing.records.survey import CodeCounts, Progress, Steps, survey

FEWEST_NAMED = 5  # subjects of a code that is named though no metadata lists it
_TERMS = TERMS["templates"]
_VISITS: dict[str, str] = _TERMS["visits"]  # what OMOP's visits are


@dataclass(frozen=True)
class FoundCode:
    """A code that fits a text.

    Attributes:
        code: As the data has it.
        description: From `metadata/codes.parquet`; empty without one.
        subjects: Who have it: a number, or `<11`.
        rows: Its rows; None where `subjects` is hidden.
    """

    code: str
    description: str
    subjects: int | str
    rows: int | None


def find_codes(
    data: Path,
    text: str,
    *,
    settings: DataConfig | None = None,
    progress: Progress | None = None,
) -> list[FoundCode]:
    """Codes that fit a text, those with most subjects first, hidden ones after them by name, unused ones last.

    Args:
        data: Folder of a MEDS data set.
        text: Words that all occur in the code or its description, whatever their case; or a pattern of task files
            (`ICD10CM//E11*`, `re:…`, `under:…`). Empty: all codes.
        settings: The section `data`.
        progress: Called with shards done and to do.

    Raises:
        EhrseqError: Nothing fits; the message has words that come close.
    """
    reader, descriptions = MedsReader(data, settings), read_descriptions(data)
    parents = read_parents(data)
    is_pattern = text.startswith(("re:", "under:")) or text.endswith("*")
    matcher, words = (
        CodeMatcher([text] if is_pattern else (), parents=parents),
        text.casefold().split(),
    )
    counts, tick = CodeCounts(), Steps(reader, 0, progress)
    for path in reader.shards:
        counts.add(reader.read(path))
        tick()
    subjects = counts.subjects
    listed = {*descriptions, *parents}
    is_real = not is_simulation(data)
    matches = []
    for code in {*subjects, *listed}:
        place = f"{code} {_describe(code, descriptions)}".casefold()
        fits = matcher(code) if is_pattern else all(word in place for word in words)
        people = subjects[code]
        if not fits:
            continue
        if is_real and code not in listed and people < FEWEST_NAMED:
            continue
        few = is_real and 0 < people < SMALLEST_COUNT
        shown = (f"<{SMALLEST_COUNT}", None) if few else (people, counts.rows[code])
        matches.append(FoundCode(code, _describe(code, descriptions), *shown))
    if not matches:
        known = listed if is_real else listed.union(subjects)
        used = re.findall(r"\w{3,}", " ".join([*known, *descriptions.values()]).casefold())
        close = [what_comes_close(word, used) for word in words]
        raise EhrseqError(
            f"no code fits {text!r}",
            where=str(data),
            fix="; ".join(filter(None, close)) or "try a shorter word, or part of a code",
        )
    # by what is shown alone, so that the order tells nothing of a hidden count
    return sorted(
        matches,
        key=lambda one: (-one.subjects if isinstance(one.subjects, int) else -0.5, one.code),
    )


def _describe(code: str, descriptions: Mapping[str, str]) -> str:
    """What a code is, or what the visit is that it ends or is a part of; empty where nothing says so."""
    whole = code.removesuffix("//END").removesuffix("//PART")
    return descriptions.get(code) or descriptions.get(whole) or _VISITS.get(whole, "")


# ---- task templates: five common questions in `config/templates/`, with names such as `$ADMISSION` for codes ----

NAMES: list[str] = _TERMS["names"]
BLANK = "FILL_IN_"  # what stands in a template for a code that is not known, before its role
MOST_LIKELY = 10  # codes that are named beside it
QUIET = (BIRTH, DEATH, *FOLLOW_UP)
# what begins a stay and what ends it
_STAYS: list[tuple[list[str], list[str]]] = [
    (begins, ends or [f"{code}//END" for code in begins]) for begins, ends in _TERMS["stays"]
]
_ROLES = {role: re.compile(pattern) for role, pattern in _TERMS["roles"].items()}


@dataclass(frozen=True)
class Suggestion:
    """A template and a data set.

    Attributes:
        name: Of the template.
        title: Its question.
        missing: What the data has no code of; empty where the template fits.
        text: The task file, filled in, with blanks for what is missing.
        covers: The people and the stays that it is about, and the visits that it leaves out; empty where it is about
            no stays.
    """

    name: str
    title: str
    missing: tuple[str, ...]
    text: str
    covers: str


def suggest(
    data: Path, *, settings: DataConfig | None = None, progress: Progress | None = None
) -> list[Suggestion]:
    """Which templates fit a data set, filled with its codes.

    Args:
        data: Folder of a MEDS data set.
        settings: The section `data`.
        progress: Called with shards done and to do.

    Raises:
        EhrseqError: The data cannot be read.
    """
    reader = MedsReader(data, settings)
    groups = [CodeMatcher(begins) for begins, _ in _STAYS]
    surveyed = survey(reader, lambda: CodeCounts(groups), Steps(reader, 0, progress))
    people = {code: n for code, n in surveyed.part.subjects.items() if n >= SMALLEST_COUNT}
    descriptions = read_descriptions(data)
    codes = find_roles(people, descriptions, subjects=len(surveyed.subject_id))
    living = surveyed.days.leaving - surveyed.days.deaths
    gone = living[surveyed.days.day < surveyed.end_us // DAY_US - LONG_DAYS].sum()
    if gone >= MOST * living.sum() and "{code:" not in codes["CENSORING"]:
        codes |= {
            "DOUBT": _TERMS["doubt"].format(living.sum()),
            "OMITTED": _TERMS["omitted"].format(living.sum()),
        }
    suggestions = []
    for name in NAMES:
        path = files("ehrsequencing.config") / "templates" / f"{name}.yaml"
        text = path.read_text(encoding="utf-8")
        wanted = dict.fromkeys(re.findall(r"\$([A-Z]+)", text))
        blanks = [role for role in wanted if role not in codes]
        title = text.partition("\n")[0].removeprefix("# ")
        filled = Template(text).substitute(codes | {role: f"{BLANK}{role}" for role in blanks})
        filled = (
            "".join(_blank(role, surveyed.part, people, descriptions) for role in blanks) + filled
        )
        covers = ""
        if "ADMISSION" in wanted and "ADMISSION" in codes:
            covers = _covers(surveyed.part, people, codes)
        missing = tuple(_TERMS["words"][role] for role in blanks)
        suggestions.append(Suggestion(name, title, missing, filled, covers))
    return suggestions


def _blank(
    role: str, counts: CodeCounts, people: Mapping[str, int], descriptions: Mapping[str, str]
) -> str:
    """A remark on a blank of a template: the codes that are likeliest, by their words, then by their people."""
    words = re.compile(TERMS["blanks"][role], re.IGNORECASE)

    def rank(code: str) -> tuple[bool, int, str]:
        return (not words.search(f"{code} {descriptions.get(code, '')}"), -people[code], code)

    likely = sorted((code for code in people if code not in QUIET), key=rank)[:MOST_LIKELY]
    named = ", ".join(f"{code} ({counts.rows[code]:,} rows)" for code in likely)
    return f"# Put the code of {_TERMS['words'][role]} in place of {BLANK}{role}; it may be one of: {named}\n"


def _covers(counts: CodeCounts, people: Mapping[str, int], roles: Mapping[str, str]) -> str:
    """People and stays with one of the codes that stand for an admission, and the other visits."""
    place = [_as_yaml(begins) for begins, _ in _STAYS].index(roles["ADMISSION"])
    is_stay = counts.groups[place]
    others = [
        " ".join(filter(None, (code, _VISITS.get(code), f"({counts.rows[code]:,})")))
        for code in sorted(people)
        if (code in _VISITS or code.startswith(tuple(_TERMS["prefixes"])))
        and not (is_stay(code) or code.endswith(("//END", "//PART")))
    ]
    stays = sum(rows for code, rows in counts.rows.items() if is_stay(code))
    left_out = f"; visits left out: {', '.join(others)}" if others else ""
    moves = sum(rows for code, rows in counts.rows.items() if code.startswith(MOVED))
    joined = (
        f"; {moves:,} moves between hospitals are no discharge and no admission" if moves else ""
    )
    return f"{counts.people[place]:,} people, {stays:,} stays{joined}{left_out}"


def find_roles(
    people: Mapping[str, int], descriptions: Mapping[str, str], *, subjects: int
) -> dict[str, str]:
    """What stands for the names in templates, as YAML.

    Args:
        people: Code → how many people have it.
        descriptions: Of codes.
        subjects: People in the data set.
    """
    end = next((code for code in _TERMS["ends"] if code in people), None)
    roles = {
        "CENSORING": f"{{code: {end}}}" if end else "{dataset_end: true}",
        "DOUBT": "",
        "OMITTED": "",
    }
    if deaths := [code for code in _TERMS["deaths"] if code in people]:
        roles["DEATH"] = _as_yaml(deaths)
    for admission, discharge in _STAYS:
        if any(map(CodeMatcher(admission), people)):
            roles["ADMISSION"] = _as_yaml(admission)
            if any(map(CodeMatcher(discharge), people)):
                roles["DISCHARGE"] = _as_yaml(discharge)
            break

    def commonest(fits: Callable[[str], object]) -> list[str]:
        # what nearly all people have is no news of anybody
        few = [code for code in people if people[code] <= subjects / 2 and fits(code)]
        return sorted(few, key=lambda code: (-people[code], code))[:1]

    diagnosis = commonest(
        lambda c: any(map(_ROLES["diagnosis"].match, (c, descriptions.get(c, ""))))
    ) or commonest(lambda c: _ROLES["snomed"].match(f"{c} {descriptions.get(c, '').lower()}"))
    treatment = commonest(_ROLES["treatment"].match)
    roles |= {"DIAGNOSIS": _as_yaml(diagnosis)} if diagnosis else {}
    roles |= {"TREATMENT": _as_yaml(treatment)} if treatment else {}
    return roles


def _as_yaml(codes: Sequence[str]) -> str:
    quoted = ["'" + code.replace("'", "''") + "'" for code in codes]
    return quoted[0] if len(quoted) == 1 else f"[{', '.join(quoted)}]"
