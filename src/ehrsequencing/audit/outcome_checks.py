"""Checks of a run with many outcomes: their events and their names, against the records."""

from ehrsequencing.audit.data import SPLITS, AuditData, Check, Finding, judge, no_source
from ehrsequencing.records.events import STATIC


def outcomes_in_records(data: AuditData) -> Finding:
    """Events of every outcome of the sampled subjects, read from the records again by simple loops."""
    if data.source is None:
        return no_source(data)
    names, store = data.run.outcomes, data.prepared
    if store.outcomes(data.task.name) != names:
        return Finding(
            "leak", "the run's outcomes are not those of its prepared set", {"outcomes": len(names)}
        )
    number = {code: k for k, code in enumerate(names)}
    bad = total = subjects = 0
    for split in SPLITS:
        records = store.outcome_records(data.task.name, split)
        assert records.outcomes is not None
        for subject in data.sample[split].tolist():
            events = data.source.records[int(records.timelines.subject_id[subject])]
            expected = set[tuple[int, int]]()
            earliest = dict[int, int]()
            for code, moment in zip(events.code.tolist(), events.time_us.tolist(), strict=True):
                place = number.get(events.codes[code])
                if place is not None and moment != STATIC:
                    expected.add((place, moment))
                    earliest[place] = min(moment, earliest.get(place, moment))
            if not records.outcomes_recur:
                expected = set(earliest.items())
            low, high = records.outcomes.outcome_offsets[subject : subject + 2].tolist()
            codes, moments = (
                records.outcomes.outcome_codes[low:high],
                records.outcomes.outcome_us[low:high],
            )
            bad += len(expected ^ set(zip(codes.tolist(), moments.tolist(), strict=True)))
            total, subjects = total + len(expected), subjects + 1
    what = "events of outcomes are not those of the records"
    clean = "every sampled event of an outcome is in the records, and none is missing"
    return judge(
        bad, of=total, what=what, clean=clean, tested={"subjects": subjects, "events": total}
    )


CHECKS = (
    Check(
        "outcomes_in_records",
        "Are the events of all outcomes those of the records?",
        outcomes_in_records,
    ),
)
