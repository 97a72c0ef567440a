"""Records from rows in memory, for the tests of explanations."""

from ehrsequencing.explain import SubjectRecord
from ehrsequencing.prediction.run import Run
from ehrsequencing.records.codes import CodeMatcher
from ehrsequencing.records.cohort import CohortBuilder
from ehrsequencing.records.events import NEVER, Events
from ehrsequencing.records.visits import make_record


def record_of_events(run: Run, events: Events, *, as_of_us: int) -> SubjectRecord:
    """The record of one subject's rows, with one prediction time."""
    record = make_record(events, excluded=CodeMatcher(run.manifest["excluded"]), settings=run.study.visits)
    cohort = CohortBuilder(run.task).build(record, dataset_end_us=int(NEVER), labelled=False, as_of_us=as_of_us)
    return SubjectRecord(record, cohort.rows)
