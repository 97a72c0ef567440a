"""Why a run predicts a risk: what the risk would be without a code, a pair of codes or a visit."""

from ehrsequencing.explain.deletions import (
    Change as Change,
    Deletion as Deletion,
    Effect as Effect,
    change as change,
    deletion as deletion,
)
from ehrsequencing.explain.record import (
    Edit as Edit,
    Question as Question,
    SubjectRecord as SubjectRecord,
    edited_risks as edited_risks,
    subject_record as subject_record,
    subject_records as subject_records,
)
