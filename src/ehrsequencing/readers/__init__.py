"""Foreign records → MEDS: OMOP and Synthea. A reader yields `rows`; `settle` applies the rules; `meds_out` writes."""
