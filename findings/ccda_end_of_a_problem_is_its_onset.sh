#!/usr/bin/env bash
# Gout that ended in June 2021 has an onset until June 2021, no end, and is active, in ccda-to-fhir.
#
# Packages:  ccda-to-fhir 0.3, fhir.resources 8.3.0
# Guess:     a problem's effectiveTime of a C-CDA document is its onset (low) and its end (high), so a Condition has
#            onsetDateTime and abatementDateTime and is no longer active.
# Seen:      one problem, low 2020-01-01, high 2021-06-01, in a concern that is still followed, and results:
#              low and high         onsetPeriod 2020-01-01 to 2021-06-01, active
#              low alone            onsetDateTime 2020-01-01, active
#              a result of type PQ  valueQuantity 2.5
#              of type REAL         no value, "Value not provided in source C-CDA document"
#            An end becomes the end of the onset where both dates are known.
# Matters:   C-CDA is what a patient's earlier provider sends. Nothing has an end: a broken leg of 1999 is a comorbidity
#            at every later index date, and a reader that takes an onset's end for its date moves it by years. INR and
#            scores are often of type REAL. Take onsetPeriod.end as the end, and count results without a value.
# Date:      2026-11-29
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check ccda-to-fhir==0.3 fhir.resources==8.3.0
"$dir/venv/bin/python" - <<'PY'
import logging

from ccda_to_fhir import convert_document

logging.disable(logging.CRITICAL)
TEMPLATE = "2.16.840.1.113883.10.20.22"
LOINC, SNOMED = "2.16.840.1.113883.6.1", "2.16.840.1.113883.6.96"
DOCUMENT = f"""<ClinicalDocument xmlns="urn:hl7-org:v3" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance">
<realmCode code="US"/><typeId root="2.16.840.1.113883.1.3" extension="POCD_HD000040"/>
<templateId root="{TEMPLATE}.1.1" extension="2015-08-01"/><templateId root="{TEMPLATE}.1.2" extension="2015-08-01"/>
<id root="2.16.840.1.113883.19.5.99999.1" extension="d"/><code code="34133-9" codeSystem="{LOINC}"/><title>CCD</title>
<effectiveTime value="20240310120000-0500"/><confidentialityCode code="N" codeSystem="2.16.840.1.113883.5.25"/>
<languageCode code="en-US"/>
<recordTarget><patientRole><id root="2.16.840.1.113883.19.5" extension="1"/><addr nullFlavor="UNK"/>
<telecom nullFlavor="UNK"/><patient><name><given>A</given><family>B</family></name>
<administrativeGenderCode code="F" codeSystem="2.16.840.1.113883.5.1"/><birthTime value="19500101"/></patient>
</patientRole></recordTarget>
<author><time value="20240310120000-0500"/><assignedAuthor><id root="2.16.840.1.113883.4.6" extension="9"/>
<addr nullFlavor="UNK"/><telecom nullFlavor="UNK"/>
<assignedPerson><name><given>D</given><family>R</family></name></assignedPerson></assignedAuthor></author>
<custodian><assignedCustodian><representedCustodianOrganization><id root="2.16.840.1.113883.19.5" extension="c"/>
<name>H</name><telecom nullFlavor="UNK"/><addr nullFlavor="UNK"/></representedCustodianOrganization>
</assignedCustodian></custodian>
<component><structuredBody><component><section>%s</section></component></structuredBody></component>
</ClinicalDocument>"""
PROBLEM = f"""<templateId root="{TEMPLATE}.2.5.1" extension="2015-08-01"/><code code="11450-4" codeSystem="{LOINC}"/>
<title>Problems</title><text>gout</text><entry typeCode="DRIV"><act classCode="ACT" moodCode="EVN">
<templateId root="{TEMPLATE}.4.3" extension="2015-08-01"/><id root="1.2.3" extension="a"/>
<code code="CONC" codeSystem="2.16.840.1.113883.5.6"/><statusCode code="active"/>
<effectiveTime><low value="20240101"/></effectiveTime><entryRelationship typeCode="SUBJ">
<observation classCode="OBS" moodCode="EVN"><templateId root="{TEMPLATE}.4.4" extension="2015-08-01"/>
<id root="1.2.3" extension="o"/><code code="55607006" codeSystem="{SNOMED}"><translation code="75326-9"
codeSystem="{LOINC}"/></code><statusCode code="completed"/><effectiveTime><low value="20200101"/>%s</effectiveTime>
<value xsi:type="CD" code="90560007" codeSystem="{SNOMED}" displayName="Gout"/></observation></entryRelationship>
</act></entry>"""
RESULT = f"""<templateId root="{TEMPLATE}.2.3.1" extension="2015-08-01"/><code code="30954-2" codeSystem="{LOINC}"/>
<title>Results</title><text>INR</text><entry typeCode="DRIV"><organizer classCode="BATTERY" moodCode="EVN">
<templateId root="{TEMPLATE}.4.1" extension="2015-08-01"/><id root="1.2.4" extension="r"/>
<code code="38875-1" codeSystem="{LOINC}"/><statusCode code="completed"/>
<effectiveTime><low value="20240301"/><high value="20240301"/></effectiveTime>
<component><observation classCode="OBS" moodCode="EVN"><templateId root="{TEMPLATE}.4.2" extension="2015-08-01"/>
<id root="1.2.4" extension="i"/><code code="6301-6" codeSystem="{LOINC}"/><statusCode code="completed"/>
<effectiveTime value="20240301"/>%s</observation></component></organizer></entry>"""


def resource(section, kind):
    entries = convert_document(DOCUMENT % section)["bundle"]["entry"]
    return next(entry["resource"] for entry in entries if entry["resource"]["resourceType"] == kind)


ended = resource(PROBLEM % '<high value="20210601"/>', "Condition")
lasting = resource(PROBLEM % "", "Condition")
physical = resource(RESULT % '<value xsi:type="PQ" value="2.5" unit="1"/>', "Observation")
real = resource(RESULT % '<value xsi:type="REAL" value="2.5"/>', "Observation")
for condition in (ended, lasting):
    onset = condition.get("onsetPeriod") or condition["onsetDateTime"]
    print(onset, condition.get("abatementDateTime"), condition["clinicalStatus"]["coding"][0]["code"])
print(physical["valueQuantity"]["value"], "|", real.get("dataAbsentReason"))
assert dict(ended["onsetPeriod"]) == {"start": "2020-01-01", "end": "2021-06-01"}, "an end is an end now"
assert "abatementDateTime" not in ended and ended["clinicalStatus"]["coding"][0]["code"] == "active", "it ends now"
assert lasting["onsetDateTime"] == "2020-01-01", "the onset changed"
assert float(physical["valueQuantity"]["value"]) == 2.5, "PQ changed"
assert not any(key.startswith("value") for key in real) and "dataAbsentReason" in real, "REAL is read now"
PY
