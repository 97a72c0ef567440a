"""Why a run predicts a risk: what the risk would be without a code, a pair of codes or a visit."""

from ehrsequencing.explain.deletions import (
    Change,
    Deletion,
    Effect,
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
    "Change",
    "Deletion",
    "Edit",
    "Effect",
    "Question",
    "SubjectRecord",
    "change",
    "deletion",
    "edited_risks",
    "subject_record",
    "subject_records",
]
