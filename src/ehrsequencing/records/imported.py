"""What an import noted in `metadata/dataset.json` for those who read its data set."""

from pathlib import Path

from ehrsequencing.config import StudyConfig, VisitsConfig, validated
from ehrsequencing.core.files import read_json

IMPORT_SETTINGS = "ehrseq_import"  # a key that readers of MEDS ignore


def with_imported_visits(study: StudyConfig, data: Path) -> StudyConfig:
    """The study; where it says nothing about how visits are cut, they are cut as the import of the data noted."""
    path = data / "metadata" / "dataset.json"
    if {"by", "column"} & study.visits.model_fields_set or not path.is_file():
        return study
    noted = read_json(path).get(IMPORT_SETTINGS, {}).get("visits", {})
    visits = validated(VisitsConfig, study.visits.model_dump() | dict(noted), where=str(path))
    return study.model_copy(update={"visits": visits})
