"""Why a run predicts a risk: what the risk would be without a code, a pair of codes or a visit."""

from ehrsequencing.explain.deletions import Change as Change
from ehrsequencing.explain.deletions import Deletion as Deletion
from ehrsequencing.explain.deletions import Effect as Effect
from ehrsequencing.explain.deletions import change as change
from ehrsequencing.explain.deletions import deletion as deletion
from ehrsequencing.explain.record import Edit as Edit
from ehrsequencing.explain.record import Question as Question
from ehrsequencing.explain.record import SubjectRecord as SubjectRecord
from ehrsequencing.explain.record import edited_risks as edited_risks
from ehrsequencing.explain.record import subject_record as subject_record
from ehrsequencing.explain.record import subject_records as subject_records
