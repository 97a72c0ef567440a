"""What pretraining predicts: the target codes of a visit, and when each comes next; and which codes it must not.

Targets are codes, not tokens: a joint token (`CODE//Q3`) counts as its code. Unknown tokens, summaries and excluded
codes are never targets, but a model still reads them. Everything is looked up in the whole record.

To predict the time or presence of the outcome's own code is supervised learning under another name: the benefit of
records without labels would be overstated. So the codes that name a task's outcome are no targets (`excluded_targets`).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ehrsequencing.core.arrays import Floats, Ints, ragged
from ehrsequencing.records.codes import CodeMatcher, reachable, read_parents
from ehrsequencing.records.events import DAY_US
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.timelines import TaskRecords, TaskRows, Timelines
from ehrsequencing.records.vocabulary import Vocabulary

MOST_SAMPLED = 20_000  # visits that starting rates are counted on
MOST_WAITS = 4_000  # visits of these from which the times to every code are counted
SHORTEST_DAYS = 1 / 1440  # one minute: no time to a code is shorter
MOST_NEAR = 0.5  # share of subjects above which a code is a near-synonym
LEAST_SUBJECTS = 5  # with the code and the outcome; fewer say nothing


@dataclass(frozen=True)
class TargetCodes:
    """The C codes that may be predicted."""

    tokens: Ints  # (C,) their token ids, rising
    number: Ints  # (V,) 0 … C-1 for a target's token and the joint tokens of its values, -1 for all others

    def __len__(self) -> int:
        return len(self.tokens)


def target_codes(vocabulary: Vocabulary, excluded: Ints) -> TargetCodes:
    """All codes of a vocabulary but those with the token ids `excluded`."""
    size, base = len(vocabulary), vocabulary.base
    is_code = np.arange(size) >= vocabulary.n_unknown
    is_code &= base == np.arange(size)
    is_code[excluded] = False
    number = np.full(size, -1, dtype=np.int64)
    number[is_code] = np.arange(int(is_code.sum()))
    of_bins = number[base]
    bins = vocabulary.settings.bins if vocabulary.settings.mode == "bins" else 0
    summaries = vocabulary.summary_tokens
    for first in summaries[summaries >= 0].tolist():
        # a summary and its bins say nothing of the visit itself
        of_bins[first : first + 1 + bins] = -1
    return TargetCodes(np.flatnonzero(is_code), of_bins)


def visit_rows(timelines: Timelines) -> TaskRows:
    """Every visit as a prediction time without a label, so that `SubjectLoader` makes batches of whole records."""
    n_visits = len(timelines.end_us)
    first = np.repeat(timelines.subject_offsets[:-1], np.diff(timelines.subject_offsets))
    nothing, none = np.zeros(n_visits, dtype=np.float32), np.zeros(n_visits, dtype=np.int32)
    return TaskRows(
        row_offsets=timelines.subject_offsets,
        prediction_us=timelines.end_us,
        index_us=timelines.end_us,
        is_query=np.zeros(n_visits, dtype=np.bool_),
        visits_before=(np.arange(n_visits) - first + 1).astype(np.int32),
        age_years=nothing,
        delta_days=nothing,
        unfinished_codes=none,
        duration_days=np.full(n_visits, np.nan),
        entry_days=np.zeros(n_visits),
        cause=np.zeros(n_visits, dtype=np.int8),
        carry_offsets=np.zeros(n_visits + 1, dtype=np.int64),
        carry_codes=np.zeros(0, dtype=np.int32),
        carry_values=np.zeros((0, 2), dtype=np.float32),
    )


def codes_of_visits(timelines: Timelines, visits: Ints, codes: TargetCodes) -> tuple[Ints, Ints]:
    """Target codes of some visits, each once a visit: place of the visit among these, and the code."""
    items, offsets = ragged(timelines.visit_offsets, visits)
    code = codes.number[timelines.codes[items]]
    row = np.repeat(np.arange(len(visits)), np.diff(offsets))
    is_target = code >= 0
    pairs = np.unique(row[is_target] * len(codes) + code[is_target])
    return pairs // len(codes), pairs % len(codes)


@dataclass(frozen=True)
class TimesToCodes:
    """For r visits that are not their subject's last: days until each target code is next recorded."""

    chosen: Ints  # (r,) which of the given visits
    stop_days: Floats  # (r,) days from the end of the visit to the end of the record: the exposure
    row: Ints  # (P,) 0 … r-1, ascending: pairs of a visit and a code that is recorded after it
    code: Ints  # (P,) rising within a row; each once
    days: (
        Floats  # (P,) from the end of the visit to the start of the first later visit with the code
    )


def times_to_codes(
    timelines: Timelines, visits: Ints, codes: TargetCodes, *, most: int | None = None
) -> TimesToCodes:
    """Look up when each code comes next after some visits.

    Args:
        timelines: The records.
        visits: (n,) visits, rising; those that are their subject's last are left out.
        codes: What may be predicted.
        most: At most so many visits, evenly spread over those that have a next one.
    """
    offsets, n = timelines.subject_offsets, len(codes)
    subject = np.searchsorted(offsets, visits, side="right") - 1
    chosen = np.flatnonzero(visits + 1 < offsets[subject + 1])
    if most is not None and len(chosen) > most:
        chosen = chosen[np.linspace(0, len(chosen) - 1, most).astype(np.int64)]
    visits, subject = visits[chosen], subject[chosen]

    # every code of these subjects, sorted by subject, code and visit
    owners, local = np.unique(subject, return_inverse=True)
    seen, seen_offsets = ragged(offsets, owners)
    place, code = codes_of_visits(timelines, seen, codes)
    owner = np.searchsorted(seen_offsets, place, side="right") - 1
    width = len(timelines.end_us) + 1
    entry = np.sort((owner * n + code) * width + seen[place])

    # for each visit, all codes of its subject, and the first entry of each after the visit
    subject_code = np.unique(entry // width)
    first = np.searchsorted(subject_code, np.arange(len(owners) + 1) * n)
    candidates, bounds = ragged(first, local)
    row = np.repeat(np.arange(len(visits)), np.diff(bounds))
    key = subject_code[candidates]
    at = np.searchsorted(entry, key * width + visits[row], side="right")
    is_later = at < len(entry)
    is_later[is_later] = entry[at[is_later]] // width == key[is_later]
    row, key, next_visit = row[is_later], key[is_later], entry[at[is_later]] % width

    last = offsets[subject + 1] - 1
    stop = (timelines.end_us[last] - timelines.end_us[visits]) / DAY_US
    days = (timelines.start_us[next_visit] - timelines.end_us[visits[row]]) / DAY_US
    return TimesToCodes(
        chosen=chosen,
        stop_days=np.maximum(stop, SHORTEST_DAYS),
        row=row,
        code=key % n,
        days=np.maximum(days, SHORTEST_DAYS),
    )


def training_rates(
    timelines: Timelines, codes: TargetCodes, *, seed: int
) -> tuple[Floats, TimesToCodes]:
    """Share (C,) of each target code among all pairs of visit and code, and times to every code from some visits.

    Counted on at most `MOST_SAMPLED` visits of whole training subjects drawn at random.

    Half an occurrence is added to each count, so that no rate is 0 or 1.
    """
    order = np.random.default_rng([seed, len(timelines)]).permutation(len(timelines))
    total = np.cumsum(np.diff(timelines.subject_offsets)[order])
    subjects = np.sort(order[: max(1, int(np.searchsorted(total, MOST_SAMPLED)))])
    visits, _ = ragged(timelines.subject_offsets, subjects)
    _, code = codes_of_visits(timelines, visits, codes)
    counts = np.bincount(code, minlength=len(codes)) + 0.5
    return counts / counts.sum(), times_to_codes(timelines, visits, codes, most=MOST_WAITS)


# ---- codes that are no targets ---------------------------------------------------------------------------------------


def excluded_targets(
    prepared: Prepared, task_name: str, *, data: Path | None = None
) -> dict[str, Ints]:
    """The codes that pretraining for a task must not predict, counted on its training subjects.

    - The *outcome*: its codes.
    - *Relatives*: ancestors and descendants of an outcome's code in the ontology, and what it is rolled up to.
    - *Near-synonyms*: codes c for which most training subjects with c have the outcome within a day of one of them, or
      for which most training subjects with the outcome have their first c within a day of it.
    - *Outcomes*: where the task asks for many, their codes and relatives. Near-synonyms are looked for beside the
      task's own outcome alone.

    Competing causes may be targets.

    Args:
        prepared: The set, with the task.
        task_name: Its name.
        data: Folder of the MEDS data, for the ontology; default: where `prepare` found it. Without the folder there
            are no relatives but those that the vocabulary itself records.

    Returns:
        Reason → token ids (rising): `outcome`, `relatives`, `synonyms`, `outcomes`; each code once.
    """
    task, vocabulary = prepared.task(task_name), prepared.vocabulary
    folder = data or Path(prepared.manifest.get("data_path", ""))
    parents = read_parents(folder) if folder.is_dir() else {}
    own = [pattern for patterns in task.outcome.values() for pattern in patterns]
    outcome, relatives = _by_ontology(own, vocabulary, parents)
    near = near_synonyms(prepared.records(task_name, "train"), vocabulary, causes=len(task.outcome))
    patterns = () if task.outcomes is None else task.outcomes.codes
    by_reason = {
        "outcome": outcome,
        "relatives": relatives,
        "synonyms": near,
        "outcomes": np.concatenate(_by_ontology(patterns, vocabulary, parents)),
    }
    excluded: dict[str, Ints] = {}
    for reason, tokens in by_reason.items():  # a code has the first reason that applies
        excluded[reason] = np.setdiff1d(tokens, all_of(excluded))
    return excluded


def all_of(excluded: Mapping[str, Ints]) -> Ints:
    """Token ids (rising) that are excluded for any reason."""
    return np.unique(np.concatenate([np.zeros(0, dtype=np.int64), *excluded.values()]))


def names_of(excluded: Mapping[str, Ints], vocabulary: Vocabulary) -> dict[str, list[str]]:
    """Reason → names of codes; `outcomes` only where there are some."""
    return {
        reason: [vocabulary.tokens[token] for token in tokens.tolist()]
        for reason, tokens in excluded.items()
        if reason != "outcomes" or len(tokens)
    }


def _by_ontology(
    patterns: Sequence[str], vocabulary: Vocabulary, parents: Mapping[str, list[str]]
) -> tuple[Ints, Ints]:
    """Tokens of the codes that some patterns match, and of their ancestors and descendants."""
    matcher = CodeMatcher(patterns, parents=parents)
    own = [code for code in vocabulary.codes if matcher(code)]
    named = {code for code in (*parents, *vocabulary.codes) if matcher(code)}
    ancestors = set().union(*(reachable(code, parents) for code in named)) if named else set()
    children: dict[str, list[str]] = {}
    for code, up in parents.items():
        for parent in up:
            children.setdefault(parent, []).append(code)
    below = set().union(*(reachable(code, children) for code in named)) if named else set()
    return _tokens(vocabulary, own), _tokens(vocabulary, ancestors | below)


def _tokens(vocabulary: Vocabulary, codes: Iterable[str]) -> Ints:
    return np.array(
        sorted(vocabulary.index[code] for code in codes if code in vocabulary.index), dtype=np.int64
    )


def near_synonyms(records: TaskRecords, vocabulary: Vocabulary, *, causes: int) -> Ints:
    """Tokens of codes that most subjects have within a day of the outcome.

    Args:
        records: Visits and labels of the training subjects.
        vocabulary: Of the set.
        causes: How many of the task's causes are outcomes (the first ones; others compete).
    """
    rows, timelines = records.rows, records.timelines
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
    if not with_outcome:
        return np.zeros(0, dtype=np.int64)
    # how many subjects with a prediction time have each code
    owner = np.repeat(timelines.owner, np.diff(timelines.visit_offsets))
    kept = (np.diff(rows.row_offsets) > 0)[owner]
    seen = np.unique(owner[kept] * size + vocabulary.base[timelines.codes][kept])
    carriers = np.bincount(seen % size, minlength=size)
    for one in np.array_split(pairs, max(1, len(pairs) // 10_000)):
        # the codes of these subjects; a visit is within a day of a moment when any part of it is
        visits, visit_offsets = ragged(timelines.subject_offsets, one[:, 0])
        pair = np.repeat(np.arange(len(one)), np.diff(visit_offsets))
        is_after = timelines.start_us[visits] - DAY_US <= one[pair, 1]
        is_near_visit = is_after & (one[pair, 1] <= timelines.end_us[visits] + DAY_US)
        items, item_offsets = ragged(timelines.visit_offsets, visits)
        owner = np.repeat(np.arange(len(visits)), np.diff(item_offsets))
        tokens, is_near = vocabulary.base[timelines.codes[items]], is_near_visit[owner]
        is_first = np.zeros(len(tokens), dtype=np.bool_)
        is_first[np.unique(pair[owner] * size + tokens, return_index=True)[1]] = True
        for mask, counts in ((is_near, near), (is_near & is_first, first_near)):
            seen = np.unique(one[pair[owner[mask]], 0] * size + tokens[mask])
            np.add.at(counts, seen % size, 1)
    is_synonym = (near >= LEAST_SUBJECTS) & (
        (near > MOST_NEAR * carriers) | (first_near > MOST_NEAR * with_outcome)
    )
    is_synonym &= np.arange(size) >= vocabulary.n_unknown
    return np.flatnonzero(is_synonym)
