"""Questions about a data set's codes: which fit a text, and which task templates they fill in.

Counts of 1 to 10 people of real data are hidden, and the number of rows of such a code. A code of fewer than 5 people
is named only if `metadata/codes.parquet` lists it, as in messages about task files.
"""

import re
from collections.abc import Callable, Mapping
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
from ehrsequencing.records.events import DEATH
from ehrsequencing.records.meds import MedsReader, is_simulation
from ehrsequencing.records.survey import CodeCounts, Progress, Steps, survey

FEWEST_NAMED = 5  # subjects of a code that is named though no metadata lists it


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
    fits = _filter(text, descriptions, parents)
    counts, tick = CodeCounts(), Steps(reader, 0, progress)
    for path in reader.shards:
        counts.add(reader.read(path))
        tick()
    subjects = counts.subjects
    listed = {*descriptions, *parents}
    is_real = not is_simulation(data)
    found = []
    for code in filter(fits, {*subjects, *listed}):
        people = subjects[code]
        if is_real and code not in listed and people < FEWEST_NAMED:
            continue
        few = is_real and 0 < people < SMALLEST_COUNT
        shown = (f"<{SMALLEST_COUNT}", None) if few else (people, counts.rows[code])
        found.append(FoundCode(code, descriptions.get(code, ""), *shown))
    if not found:
        known = listed if is_real else listed.union(subjects)
        words = re.findall(r"\w{3,}", " ".join([*known, *descriptions.values()]).casefold())
        close = [what_comes_close(word, words) for word in text.casefold().split()]
        raise EhrseqError(
            f"no code fits {text!r}",
            where=str(data),
            fix="; ".join(filter(None, close)) or "try a shorter word, or part of a code",
        )
    # by what is shown alone, so that the order tells nothing of a hidden count
    return sorted(
        found,
        key=lambda one: (-one.subjects if isinstance(one.subjects, int) else -0.5, one.code),
    )


def _filter(
    text: str, descriptions: Mapping[str, str], parents: Mapping[str, list[str]]
) -> Callable[[str], bool]:
    """Whether a code fits a text."""
    if text.startswith(("re:", "under:")) or text.endswith("*"):
        return CodeMatcher([text], parents=parents)
    words = text.casefold().split()

    def fits(code: str) -> bool:
        place = f"{code} {descriptions.get(code, '')}".casefold()
        return all(word in place for word in words)

    return fits


# ---- task templates: five common questions in `config/templates/`, with names such as `$ADMISSION` for codes ----

NAMES = (
    "readmission",
    "death_after_admission",
    "in_hospital_death",
    "first_diagnosis",
    "next_treatment",
)
_WORDS = {
    "ADMISSION": "an admission",
    "DISCHARGE": "a discharge",
    "DEATH": "death",
    "DIAGNOSIS": "a diagnosis",
    "TREATMENT": "a treatment",
}
# what begins a stay and what ends it, hospital stays before those in intensive care
_STAYS: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (("HOSPITAL_ADMISSION*",), ("HOSPITAL_DISCHARGE*",)),
    (("ENCOUNTER//inpatient",), ("ENCOUNTER//inpatient//END",)),
    (("OMOP//9201", "OMOP//262"), ("OMOP//9201//END", "OMOP//262//END")),
    (("ADMISSION*",), ("DISCHARGE*",)),
    (("STAY//ADMISSION",), ("STAY//DISCHARGE",)),
    (("ICU_ADMISSION*",), ("ICU_DISCHARGE*",)),
)
_DEATHS = (DEATH, "HOSPITAL_DISCHARGE//DIED")
_ENDS = ("END_OF_FOLLOWUP", "OBSERVATION_PERIOD_END")
_DIAGNOSES = re.compile(r"(ICD|DIAGNOSIS//|DX//|CONDITION//)|.*\(disorder\)$")
_TREATMENTS = re.compile(r"RX//|RxNorm//|MEDICATION//(START//)?|ATC//|NDC//|DRUG//")


@dataclass(frozen=True)
class Suggestion:
    """A template and a data set.

    Attributes:
        name: Of the template.
        title: Its question.
        missing: What the data has no code of; empty where the template fits.
        text: The task file, filled in; empty where it does not fit.
    """

    name: str
    title: str
    missing: tuple[str, ...]
    text: str


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
    found = survey(reader, CodeCounts, Steps(reader, 0, progress))
    people = {code: n for code, n in found.part.subjects.items() if n >= SMALLEST_COUNT}
    codes = find_roles(people, read_descriptions(data), subjects=len(found.subject_id))
    suggestions = []
    for name in NAMES:
        path = files("ehrsequencing.config") / "templates" / f"{name}.yaml"
        text = path.read_text(encoding="utf-8")
        wanted = dict.fromkeys(re.findall(r"\$([A-Z]+)", text))
        missing = tuple(_WORDS[role] for role in wanted if role not in codes)
        title = text.partition("\n")[0].removeprefix("# ")
        filled = "" if missing else Template(text).substitute(codes)
        suggestions.append(Suggestion(name, title, missing, filled))
    return suggestions


def find_roles(
    people: Mapping[str, int], descriptions: Mapping[str, str], *, subjects: int
) -> dict[str, str]:
    """What stands for the names in templates, as YAML.

    Args:
        people: Code → how many people have it.
        descriptions: Of codes.
        subjects: People in the data set.
    """
    end = next((code for code in _ENDS if code in people), None)
    roles = {"CENSORING": f"{{code: {end}}}" if end else "{dataset_end: true}"}
    if deaths := [code for code in _DEATHS if code in people]:
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
        lambda c: _DIAGNOSES.match(c) or _DIAGNOSES.match(descriptions.get(c, ""))
    )
    treatment = commonest(_TREATMENTS.match)
    roles |= {"DIAGNOSIS": _as_yaml(diagnosis)} if diagnosis else {}
    roles |= {"TREATMENT": _as_yaml(treatment)} if treatment else {}
    return roles


def _as_yaml(codes: tuple[str, ...] | list[str]) -> str:
    quoted = ["'" + code.replace("'", "''") + "'" for code in codes]
    return quoted[0] if len(quoted) == 1 else f"[{', '.join(quoted)}]"
