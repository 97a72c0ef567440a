"""A small source of each format that `import` reads, in which one person's id, birth, code and text are as asked."""

import json
from pathlib import Path
from typing import Any

from helpers.omop import SMALL, write_csv
from helpers.synthea import NEW, write_tables

MAP = """
subject: patient
time: date
birth: born
events:
  - {code: DX, code_from: icd}
"""


def write_sources(
    folder: Path, *, person: int = 1, born: str = "1950-03-01", code: str = "I50", text: str = "well"
) -> Path:
    """Write `flat.csv` with `map.yaml`, and the folders `fhir`, `omop` and `synthea`.

    Args:
        folder: Where; it is made.
        person: The id of the person.
        born: Date of birth.
        code: A code of theirs.
        text: A free text beside it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rows = [f"{person},2011-0{month}-03,{born},{what}" for month, what in ((1, "A"), (2, code), (3, text))]
    rows += [f"7,2012-0{month}-03,1960-01-01,A" for month in range(1, 10)] + [f"{person},someday,{born},A"]
    (folder / "flat.csv").write_text("patient,date,born,icd\n" + "\n".join(rows) + "\n")
    (folder / "map.yaml").write_text(MAP)
    _fhir(folder / "fhir", str(person), born, code, text)
    year, month, day = map(int, born.split("-"))
    tables: dict[str, list[dict[str, Any]]] = {name: [dict(row) for row in rows] for name, rows in SMALL.items()}
    for row in (row for rows in tables.values() for row in rows if row.get("person_id") == 1):
        row["person_id"] = person
    tables["person"][0] |= {"year_of_birth": year, "month_of_birth": month, "day_of_birth": day}
    for row, name in zip(tables["concept"][2:4], (code, text), strict=True):
        row |= {"concept_code": name, "concept_name": name}
    write_csv(tables, folder / "omop")
    changed = {name: rows.replace("anna", str(person)).replace("1950-03-01", born) for name, rows in NEW.items()}
    changed["conditions"] += f'2010-02-02,,{person},e1,"{code}","{text}"\n'
    write_tables(changed, folder / "synthea")
    return folder


def _fhir(folder: Path, person: str, born: str, code: str, text: str) -> None:
    patients = [
        {"resourceType": "Patient", "id": person, "birthDate": born, "name": [{"text": text}]},
        {"resourceType": "Patient", "id": "other", "birthDate": "1960-01-01"},
    ]
    conditions = [
        {
            "resourceType": "Condition",
            "id": f"c{n}",
            "subject": {"reference": f"Patient/{person}"},
            "code": {"coding": [{"system": "http://hl7.org/fhir/sid/icd-10", "code": what, "display": text}]},
            "onsetDateTime": when,
        }
        for n, (what, when) in enumerate([("A", "2011-01-03"), (code, "2011-02-03"), ("A", "someday")])
    ]
    folder.mkdir()
    for name, resources in (("Patient", patients), ("Condition", conditions)):
        (folder / f"{name}.ndjson").write_text("".join(json.dumps(one) + "\n" for one in resources))
