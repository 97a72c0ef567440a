"""A small Synthea export whose defects the tests count, and the writer of its CSV files."""

from collections.abc import Callable
from pathlib import Path

NEW = {
    "patients": "Id,BIRTHDATE,DEATHDATE,SSN,FIRST,RACE,ETHNICITY,GENDER\n"
    "anna,1950-03-01,,SECRET-1,SECRETNAME,white,hispanic,F\n"
    "ben,1960-05-05,2012-07-01,SECRET-2,SECRETNAME,black,,M\n",
    "encounters": "Id,START,STOP,PATIENT,ENCOUNTERCLASS,CODE,DESCRIPTION\n"
    "e1,2010-02-01T08:00:00Z,2010-02-01T08:15:00Z,anna,ambulatory,185345009,Encounter for symptom\n"
    "e2,2011-02-01T08:00:00Z,2011-01-01T08:15:00Z,ben,inpatient,185347001,Encounter for problem\n",
    "conditions": "START,STOP,PATIENT,ENCOUNTER,CODE,DESCRIPTION\n"
    '2010-02-01,,anna,e1,44054006,"Diabetes, or\nso"\n'
    "2010-05-01,,anna,e9,44054006,Diabetes\n"
    "2010-05-01,,nobody,e9,44054006,Diabetes\n"
    "2010-13-01,,anna,e1,44054006,Diabetes\n"
    "too,short\n",
    "observations": "DATE,PATIENT,ENCOUNTER,CODE,DESCRIPTION,VALUE,UNITS,TYPE\n"
    "2010-02-01T08:05:00Z,anna,e1,4548-4,HbA1c,7.25,%,numeric\n"
    "2010-02-01T08:05:00Z,anna,e1,72166-2,Smoking,Never smoker,,text\n"
    "2010-02-01T08:05:00Z,anna,e1,55555-5,Zip,12345,,text\n",
    "medications": "START,STOP,PATIENT,ENCOUNTER,CODE,DESCRIPTION\n2011-02-01T09:00:00Z,,ben,e2,314076,lisinopril\n",
}


def write_tables(
    tables: dict[str, str], folder: Path, *, change: Callable[[str], bytes] = str.encode, end: str = "csv"
) -> Path:
    folder.mkdir(parents=True)
    for name, text in tables.items():
        (folder / f"{name}.{end}").write_bytes(change(text))
    return folder
