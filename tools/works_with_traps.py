"""Rows of `docs/works-with.md` about tools before an import and beside a report: converters, units, scores, tables."""

import json
from pathlib import Path

from works_with_rows import NOTHING, Cells, Place, rows_of, share

TEMPLATE = "2.16.840.1.113883.10.20.22"
LOINC = "2.16.840.1.113883.6.1"
DOCUMENT = f"""<ClinicalDocument xmlns="urn:hl7-org:v3" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance">
<realmCode code="US"/><typeId root="2.16.840.1.113883.1.3" extension="POCD_HD000040"/>
<templateId root="{TEMPLATE}.1.1" extension="2015-08-01"/><templateId root="{TEMPLATE}.1.2" extension="2015-08-01"/>
<id root="2.16.840.1.113883.19.5.99999.1" extension="DAY"/><code code="34133-9" codeSystem="{LOINC}"/><title>CCD</title>
<effectiveTime value="202403DAY120000-0500"/><confidentialityCode code="N" codeSystem="2.16.840.1.113883.5.25"/>
<languageCode code="en-US"/>
<recordTarget><patientRole><id root="2.16.840.1.113883.19.5" extension="1"/><addr nullFlavor="UNK"/>
<telecom nullFlavor="UNK"/><patient><name><given>A</given><family>B</family></name>
<administrativeGenderCode code="F" codeSystem="2.16.840.1.113883.5.1"/><birthTime value="19500101"/></patient>
</patientRole></recordTarget>
<author><time value="202403DAY120000-0500"/><assignedAuthor><id root="2.16.840.1.113883.4.6" extension="9"/>
<addr nullFlavor="UNK"/><telecom nullFlavor="UNK"/>
<assignedPerson><name><given>D</given><family>R</family></name></assignedPerson></assignedAuthor></author>
<custodian><assignedCustodian><representedCustodianOrganization><id root="2.16.840.1.113883.19.5" extension="c"/>
<name>H</name><telecom nullFlavor="UNK"/><addr nullFlavor="UNK"/></representedCustodianOrganization>
</assignedCustodian></custodian>
<component><structuredBody><component><section><templateId root="{TEMPLATE}.2.3.1" extension="2015-08-01"/>
<code code="30954-2" codeSystem="{LOINC}"/><title>Results</title><text>INR</text>
<entry typeCode="DRIV"><organizer classCode="BATTERY" moodCode="EVN">
<templateId root="{TEMPLATE}.4.1" extension="2015-08-01"/><id root="1.2.4" extension="rDAY"/>
<code code="38875-1" codeSystem="{LOINC}"/><statusCode code="completed"/>
<effectiveTime><low value="20240301"/><high value="20240301"/></effectiveTime>
RESULTS</organizer></entry></section></component></structuredBody></component></ClinicalDocument>"""
RESULT = f"""<component><observation classCode="OBS" moodCode="EVN"><templateId root="{TEMPLATE}.4.2"
extension="2015-08-01"/><id root="1.2.4" extension="iCLOCK"/><code code="6301-6" codeSystem="{LOINC}"/>
<statusCode code="completed"/><effectiveTime value="CLOCK"/><value xsi:type="PQ" value="2.5" unit="1"/></observation>
</component>"""


def ccda_to_fhir(place: Place) -> Cells:
    """Two documents of one person, each with a result at a local time and one with an offset."""
    (place / "bundles").mkdir()
    for day in ("10", "11"):
        clocks = f"202403{day}0830", f"202403{day}0930-0500"
        results = "".join(RESULT.replace("CLOCK", clock) for clock in clocks)
        document = DOCUMENT.replace("DAY", day).replace("RESULTS", results)
        (place / f"{day}.xml").write_text(document, encoding="utf-8")
    code = """
import json, pathlib, sys
from ccda_to_fhir import convert_document
for path in pathlib.Path(sys.argv[1]).glob("*.xml"):
    bundle = convert_document(path.read_text(encoding="utf-8"))["bundle"]
    pathlib.Path(sys.argv[1], "bundles", path.stem + ".json").write_text(json.dumps(bundle, default=str))
print("null")
"""
    place.python("tool", code, place.folder)
    place.ehrseq("import", "fhir", place / "bundles", place / "meds")
    report = json.loads((place / "meds" / "metadata" / "import_report.json").read_text())
    lost = [text for text in report["warnings"] if "have a day and no clock" in text]
    people = report["written"]["subjects"]
    clocks = lost[0].partition(" have")[0] if lost else "none"
    return (
        NOTHING,
        f"two documents of one person are {people} subjects; days without a clock: {clocks}",
    )


CONDITION = {
    "resourceType": "Condition",
    "id": "c",
    "subject": {"reference": "Patient/a"},
    "onsetDateTime": "2020",
    "code": {
        "coding": [
            {"system": "http://snomed.info/sct", "code": "44054006"},
            {"system": "http://hl7.org/fhir/sid/icd-10-cm", "code": "E11.9"},
        ]
    },
}


def flat_tables(place: Place) -> Cells:
    """A condition with two codes in the table of fhiry, and in a view of sqlonfhir."""
    (place / "bundle").mkdir()
    entry = {"fullUrl": "urn:uuid:c", "resource": CONDITION}
    bundle = {"resourceType": "Bundle", "type": "collection", "entry": [entry]}
    Path(place / "bundle", "b.json").write_text(json.dumps(bundle))
    code = """
import json, sys
import fhiry.parallel
frame = fhiry.parallel.process(sys.argv[1])
print(json.dumps([str(frame["code.coding.codes"].iloc[0]), any("system" in name for name in frame.columns)]))
"""
    codes, has_system = place.python("fhiry", code, place / "bundle")
    code = """
import json, sys
from sqlonfhir import evaluate
column = [{"name": "code", "path": "code"}]
view = {"resource": "Condition", "select": [{"forEach": "code.coding", "column": column}]}
print(json.dumps(len(evaluate([json.loads(sys.argv[1])], view))))
"""
    rows = place.python("sqlonfhir", code, json.dumps(CONDITION))
    system = "with its system" if has_system else "without a system"
    return NOTHING, f"fhiry: one cell {codes!r}, {system}; sqlonfhir: {rows} rows"


def units(place: Place) -> Cells:
    """HbA1c and an arbitrary unit."""
    code = """
import json
import ucumvert
units = ucumvert.PintUcumRegistry()
ratio = (48 * units.from_ucum("mmol/mol")).to(units.from_ucum("%")).magnitude
try:
    (1 * units.from_ucum("[iU]/L")).to(units.from_ucum("mg/L"))
    refused = False
except Exception:
    refused = True
print(json.dumps([round(float(ratio), 3), refused]))
"""
    ratio, refused = place.python("tool", code)
    return (
        f"HbA1c 48 mmol/mol: {ratio} %; [iU] to mg: {'refused' if refused else 'converted'}",
        NOTHING,
    )


def comorbidity(place: Place) -> Cells:
    """The order of pycomorb's rows, and the first code of elixhauser-ahrq."""
    code = """
import json
import polars as pl
from pycomorb import comorbidity
from elixhauser_ahrq import ElixhauserMapper
frame = pl.DataFrame({"id": list(range(64)), "code": ["I21"] * 64, "age": [65] * 64})
columns = dict(id_col="id", code_col="code", age_col="age", icd_version="icd10", implementation="quan")
orders = [comorbidity(score="charlson", df=frame, **columns)["id"].to_list() for _ in range(3)]
flags = ElixhauserMapper().map_patient_diagnoses(["E119"])
print(json.dumps([all(order == list(range(64)) for order in orders), any(flags.values())]))
"""
    sorted_rows, first = place.python("tool", code)
    order = "in the order of ids" if sorted_rows else "in no order"
    return f"rows {order}; the first code {'counts' if first else 'does not count'}", NOTHING


def tableone(place: Place) -> Cells:
    """Creatinine with one decimal in few and in many rows."""
    code = """
import json, warnings
import numpy as np, pandas
from tableone import TableOne
warnings.simplefilter("ignore")
seen = []
for rows in (300, 10_000):
    creatinine = np.random.default_rng(0).normal(1, 0.2, rows).clip(0.4, 2).round(1)
    seen.append(TableOne(pandas.DataFrame({"creatinine": creatinine})).tableone.index[1][0])
print(json.dumps(seen))
"""
    few, many = (name.partition(", ")[2] for name in place.python("tool", code))
    return f"creatinine of 300: {few}; of 10,000: {many}", NOTHING


def confidenceinterval(place: Place) -> Cells:
    """F1 where one in ten has the event."""
    code = """
import json
import confidenceinterval
died = [1] * 10 + [0] * 90
predicted = [1] * 6 + [0] * 4 + [1] * 6 + [0] * 84
values = [confidenceinterval.f1_score(died, predicted, **how)[0] for how in ({}, {"average": "binary"})]
print(json.dumps([round(float(value), 2) for value in values]))
"""
    default, binary = place.python("tool", code)
    return f'F1 of 0.55: {default}; with average="binary" {binary}', NOTHING


def shap_trees(place: Place) -> Cells:
    """A forest of scikit-survival."""
    code = """
import json
import numpy as np, shap
from sksurv.ensemble import RandomSurvivalForest
from sksurv.util import Surv
random = np.random.default_rng(0)
table, times = random.normal(size=(60, 2)), random.exponential(size=60)
forest = RandomSurvivalForest(5, random_state=0).fit(table, Surv.from_arrays(np.ones(60, bool), times))
try:
    shap.TreeExplainer(forest)
    print(json.dumps("taken"))
except Exception as error:
    print(json.dumps("refused: " + type(error).__name__))
"""
    return f"scikit-survival's forest: {place.python('tool', code)}", NOTHING


MESSY = """
etl: {dataset_name: SMALL, raw_dataset_version: '1'}
_defaults: {subject_id: $id}
people:
  sex: {code: 'f"GENDER//{$sex}"', time: null}
  birth: {code: MEDS_BIRTH, time: '$born as "%Y-%m-%d"'}
  death: {code: MEDS_DEATH, time: '$died as "%Y-%m-%d"'}
labs:
  lab: {code: 'f"LAB//{$name}"', time: '$at as "%Y-%m-%d %H:%M:%S"', numeric_value: $value}
"""


def meds_extract(place: Place) -> Cells:
    """Sixty people with births, some deaths and results, extracted from CSV."""
    (place / "raw").mkdir()
    people = [f"{n},M,19{30 + n}-03-01,{'2021-05-01' if n % 5 == 0 else ''}" for n in range(60)]
    labs = [f"{n},CREA,2020-0{1 + n % 9}-01 0{n % 10}:30:00,1.{n % 10}" for n in range(60)]
    for name, header, lines in (
        ("people", "id,sex,born,died", people),
        ("labs", "id,name,at,value", labs),
    ):
        (place / "raw" / f"{name}.csv").write_text("\n".join([header, *lines]) + "\n")
    (place / "messy.yaml").write_text(MESSY)
    words = [f"spec={place / 'messy.yaml'}", f"output_dir={place / 'out'}", "do_download=false"]
    place.call("tool", "meds-extract-run", *words, f"input_dir={place / 'raw'}")
    place.ehrseq("check", place / "out", "--out", place / "check.json")
    report = json.loads((place / "check.json").read_text())
    return NOTHING, share(report["rows"]["all"], rows_of(place / "out").num_rows, "row")
