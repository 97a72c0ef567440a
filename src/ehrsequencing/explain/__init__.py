"""Why a run predicts a risk: what the risk would be without a code or a visit."""

from ehrsequencing.explain.deletions import (
    Deletion,
    Effect,
    Part,
    change,
    deletion,
)
from ehrsequencing.explain.record import (
    Edit,
    Question,
    SubjectRecord,
    edited_risks,
    subject_record,
    subject_records,
)

__all__ = [
    "Deletion",
    "Edit",
    "Effect",
    "Part",
    "Question",
    "SubjectRecord",
    "change",
    "deletion",
    "edited_risks",
    "subject_record",
    "subject_records",
]
