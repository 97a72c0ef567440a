"""Task templates: five common questions as YAML files in `config/templates/`, and which of them fit a data set.

A template has names such as `$ADMISSION` in place of codes. `suggest` looks for such codes among those that at least
11 people have, and fills them in.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from string import Template

from ehrsequencing.config import DataConfig
from ehrsequencing.core.disclosure import SMALLEST_COUNT
from ehrsequencing.records.codes import CodeMatcher, read_descriptions
from ehrsequencing.records.events import DEATH
from ehrsequencing.records.meds import MedsReader
from ehrsequencing.records.survey import CodeCounts, Progress, Steps, survey

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


def read_template(name: str) -> str:
    """The text of a template."""
    path = files("ehrsequencing.config") / "templates" / f"{name}.yaml"
    return path.read_text(encoding="utf-8")


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
    common = found.part.subjects.items()
    people = {code: count for code, count in common if count >= SMALLEST_COUNT}
    codes = find_roles(people, read_descriptions(data), subjects=len(found.subject_id))
    suggestions = []
    for name in NAMES:
        text = read_template(name)
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
