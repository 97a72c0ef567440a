"""Source formats → MEDS. A reader gives `rows`, `cleaning_rules` repair them, and `meds_writer` writes the data set.

`registry` lists the formats: one module each, here `omop` and `synthea`.
"""
