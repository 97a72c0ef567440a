"""Codes that are no targets of pretraining for a task: the outcome's codes and everything that names them.

To predict the time or presence of the outcome's own code is supervised learning under another name: the benefit of
records without labels would be overstated. So a task's outcomes are no targets, nor are

- *relatives*: ancestors and descendants of an outcome's code in the ontology, and what it is rolled up to;
- *near-synonyms*: codes c for which most training subjects with c have the outcome within a day of one of them, or for
  which most training subjects with the outcome have their first c within a day of it.

Where the task asks for many `outcomes`, their codes and relatives are no targets either. Near-synonyms are looked for
beside the task's own outcome alone.

All are counted on training subjects of the prepared set, with the task's labels. Competing causes may be targets.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ehrsequencing.core.arrays import Bools, Ints, spans
from ehrsequencing.records.codes import CodeMatcher, read_parents
from ehrsequencing.records.events import DAY_US
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.timelines import TaskRecords
from ehrsequencing.records.vocabulary import Vocabulary

MOST = 0.5  # share of subjects above which a code is a near-synonym
LEAST_SUBJECTS = 5  # with the code and the outcome; fewer say nothing


@dataclass(frozen=True)
class Excluded:
    """Token ids (rising) of the codes that are no targets, by reason; a code has the first that applies."""

    outcome: Ints
    relatives: Ints
    synonyms: Ints
    # of `outcomes`, with their relatives
    outcomes: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    @property
    def tokens(self) -> Ints:
        """All of them."""
        return np.unique(
            np.concatenate([self.outcome, self.relatives, self.synonyms, self.outcomes])
        )

    def names(self, vocabulary: Vocabulary) -> dict[str, list[str]]:
        """Reason → names of codes; `outcomes` only where there are some."""
        reasons = (
            "outcome",
            "relatives",
            "synonyms",
            *(("outcomes",) if len(self.outcomes) else ()),
        )
        return {
            reason: [vocabulary.tokens[token] for token in getattr(self, reason).tolist()]
            for reason in reasons
        }


def excluded_targets(prepared: Prepared, task_name: str, *, data: Path | None = None) -> Excluded:
    """The codes that pretraining for a task must not predict.

    Args:
        prepared: The set, with the task.
        task_name: Its name.
        data: Folder of the MEDS data, for the ontology; default: where `prepare` found it. Without the folder there
            are no relatives but those that the vocabulary itself records.
    """
    task, vocabulary = prepared.task(task_name), prepared.vocabulary
    folder = data or Path(prepared.manifest.get("data_path", ""))
    parents = read_parents(folder) if folder.is_dir() else {}
    own = [pattern for patterns in task.outcome.values() for pattern in patterns]
    outcome, relatives = _by_ontology(own, vocabulary, parents)
    near = near_synonyms(prepared.records(task_name, "train"), vocabulary, causes=len(task.outcome))
    relatives = np.setdiff1d(relatives, outcome)
    synonyms = np.setdiff1d(near, np.concatenate([outcome, relatives]))
    asked = () if task.outcomes is None else task.outcomes.codes
    many = np.concatenate(_by_ontology(asked, vocabulary, parents))
    return Excluded(
        outcome,
        relatives,
        synonyms,
        np.setdiff1d(many, np.concatenate([outcome, relatives, synonyms])),
    )


def _by_ontology(
    patterns: Sequence[str], vocabulary: Vocabulary, parents: Mapping[str, list[str]]
) -> tuple[Ints, Ints]:
    """Tokens of the codes that some patterns match, and of their ancestors and descendants."""
    matcher = CodeMatcher(patterns, parents=parents)
    own = [code for code in vocabulary.codes if matcher(code)]
    named = {code for code in (*parents, *vocabulary.codes) if matcher(code)}
    ancestors = set().union(*(_closure(code, parents) for code in named)) if named else set()
    children: dict[str, list[str]] = {}
    for code, up in parents.items():
        for parent in up:
            children.setdefault(parent, []).append(code)
    below = set().union(*(_closure(code, children) for code in named)) if named else set()
    rolled = {vocabulary.rollup.replacement(code) for code in named}
    found = ancestors | below | {code for code in rolled if code is not None}
    return _tokens(vocabulary, own), _tokens(vocabulary, found)


def _tokens(vocabulary: Vocabulary, codes: Iterable[str]) -> Ints:
    return np.array(
        sorted(vocabulary.index[code] for code in codes if code in vocabulary.index), dtype=np.int64
    )


def _closure(code: str, links: Mapping[str, list[str]]) -> set[str]:
    """Everything that can be reached from a code, without itself."""
    queue, seen = [code], {code}
    while queue:
        fresh = [other for other in links.get(queue.pop(), ()) if other not in seen]
        seen.update(fresh)
        queue.extend(fresh)
    return seen - {code}


def near_synonyms(records: TaskRecords, vocabulary: Vocabulary, *, causes: int) -> Ints:
    """Tokens of codes that most subjects have within a day of the outcome.

    Args:
        records: Visits and labels of the training subjects.
        vocabulary: Of the set.
        causes: How many of the task's causes are outcomes (the first ones; others compete).
    """
    rows = records.rows
    event = (rows.cause > 0) & (rows.cause <= causes)
    subject = rows.subject[event]
    moment = rows.prediction_us[event] + np.round(rows.duration_days[event] * DAY_US).astype(
        np.int64
    )
    size = len(vocabulary)
    near, first_near = (np.zeros(size, dtype=np.int64) for _ in range(2))
    pairs = (
        np.unique(np.stack([subject, moment], 1), axis=0)
        if len(subject)
        else np.zeros((0, 2), np.int64)
    )
    with_outcome = len(np.unique(pairs[:, 0]))
    carriers = _carriers(records, vocabulary)
    if not with_outcome:
        return np.zeros(0, dtype=np.int64)
    for one in np.array_split(pairs, max(1, len(pairs) // 10_000)):
        owner, tokens, is_near, is_first = _around(records, vocabulary, one)
        for mask, counts in ((is_near, near), (is_near & is_first, first_near)):
            seen = np.unique(owner[mask] * size + tokens[mask])
            np.add.at(counts, seen % size, 1)
    found = (near >= LEAST_SUBJECTS) & (
        (near > MOST * carriers) | (first_near > MOST * with_outcome)
    )
    found &= np.arange(size) >= vocabulary.n_unknown
    return np.flatnonzero(found)


def _carriers(records: TaskRecords, vocabulary: Vocabulary) -> Ints:
    """(V,) how many subjects with a prediction time have each code."""
    timelines = records.timelines
    asked = np.diff(records.rows.row_offsets) > 0
    owner = np.repeat(timelines.owner, np.diff(timelines.visit_offsets))
    kept = asked[owner]
    seen = np.unique(owner[kept] * len(vocabulary) + vocabulary.base[timelines.codes][kept])
    return np.bincount(seen % len(vocabulary), minlength=len(vocabulary))


def _around(
    records: TaskRecords, vocabulary: Vocabulary, pairs: Ints
) -> tuple[Ints, Ints, Bools, Bools]:
    """Codes of subjects with an outcome: subject, base token, whether within a day of it, whether the subject's first.

    A visit is within a day of a moment when any part of it is.
    """
    timelines = records.timelines
    subject, moment = pairs[:, 0], pairs[:, 1]
    start = timelines.subject_offsets[subject]
    visits, visit_offsets = spans(start, timelines.subject_offsets[subject + 1] - start)
    pair = np.repeat(np.arange(len(pairs)), np.diff(visit_offsets))
    near = (timelines.start_us[visits] - DAY_US <= moment[pair]) & (
        moment[pair] <= timelines.end_us[visits] + DAY_US
    )
    first = timelines.visit_offsets[visits]
    items, offsets = spans(first, timelines.visit_offsets[visits + 1] - first)
    owner = np.repeat(np.arange(len(visits)), np.diff(offsets))
    tokens = vocabulary.base[timelines.codes[items]]
    key = pair[owner] * len(vocabulary) + tokens
    is_first = np.zeros(len(key), dtype=np.bool_)
    is_first[np.unique(key, return_index=True)[1]] = True
    return subject[pair[owner]], tokens, near[owner], is_first
