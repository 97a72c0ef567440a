"""Counts the people behind what is stored, and asks whom pretraining saw."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from ehrsequencing.audit.data import AuditData, Check, Finding, judge
from ehrsequencing.core.arrays import Ints
from ehrsequencing.core.disclosure import count_text
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.vocabulary import Vocabulary
from ehrsequencing.records.vocabulary_fit import VocabularyFit
from ehrsequencing.results.result_types import Origin
from ehrsequencing.training.pretraining.targets import excluded_targets, names_of
from ehrsequencing.training.run_folder import subjects_digest
from ehrsequencing.training.transfer import links

# ---- how many people are behind it ----------------------------------------------------------------------------------


def single_people(data: AuditData) -> Finding:
    """Training subjects behind every code and type, and behind every stored number that is one of their values."""
    needed, vocabulary = data.prepared.study.vocabulary.min_subjects, data.vocabulary
    if needed < 2:
        return Finding("not_tested", "vocabulary.min_subjects=1 protects nobody")
    fit = data.source.fit
    people = [int(fit.subjects[fit.number[c]]) for c in vocabulary.codes if c in fit.number]
    people += [int(fit.kind_subjects[fit.kinds[kind]]) for kind in vocabulary.kinds]
    few_names = sum(count < needed for count in people)
    few_numbers = _numbers_of_few(vocabulary, fit, needed)
    return judge(
        few_names + few_numbers,
        of=len(people) + vocabulary.knots.size,
        what=f"names and numbers are those of fewer than {needed} training subjects "
        f"({count_text(few_names)} names and {count_text(few_numbers)} numbers)",
        clean=f"at least {needed} training subjects are behind every name, and share every number that is a value",
        tested={"names": len(people), "scales": len(vocabulary.mean)},
    )


def _numbers_of_few(vocabulary: Vocabulary, fit: VocabularyFit, needed: int) -> int:
    """How many values of the training subjects, of those that the fit keeps, are stored although too few share them."""
    sample, few = fit.values(), 0
    for code, token in vocabulary.index.items():
        row = vocabulary.scale[token]
        if row < 0 or code not in fit.number:
            continue
        value, who = sample.of(fit.number[code])
        is_stored = np.isin(value, np.r_[vocabulary.knots[row], vocabulary.mean[row]])
        pairs = np.unique(np.stack([value, who.astype(np.float64)])[:, is_stored], axis=1)
        _, holders = np.unique(pairs[0], return_counts=True)
        few += int((holders < needed).sum())
    return few


CHECKS = (
    Check(
        "single_people",
        "Does all that the run stores of codes and values come from at least vocabulary.min_subjects people?",
        single_people,
        needs_records=True,
    ),
)


# ---- whom pretraining saw --------------------------------------------------------------------------------------------


def pretraining(data: AuditData) -> Finding:
    """Nobody held out was seen, and nothing of the outcome was a target, in any model that the run goes back to."""
    findings = list[Finding]()
    for place, link in enumerate(links(data.run.manifest["init"]), start=1):
        parts = [unseen_subjects(data, link)]
        if "objectives" in link:  # made by ehrseq pretrain
            parts.append(excluded_codes(data, link))
        where = f" (model {place} that the run goes back to)" if place > 1 else ""
        findings += [replace(part, reason=part.reason + where) for part in parts]
    if all(one.verdict == "passed" for one in findings):
        return replace(findings[0], reason="; ".join(one.reason for one in findings))
    return min(
        findings, key=lambda one: ("leak", "warning", "not_tested", "passed").index(one.verdict)
    )


def unseen_subjects(data: AuditData, init: Origin) -> Finding:
    """No held-out subject of this run was learned from by one model before."""
    seen = init.get("subjects")
    held_out = data.records["held_out"].timelines.subject_id
    tested = {"held-out subjects": len(held_out)}
    if not isinstance(seen, dict):
        return Finding(
            "not_tested", "the model it started from does not record whom it saw", tested
        )
    same_data = init.get("data_path") == data.prepared.manifest.get("data_path")
    before = {split: data.records[split].timelines.subject_id for split in ("train", "tuning")}
    if not same_data or not _are_those(seen, before):
        try:
            theirs = Prepared(Path(init["prepared"]))
        except (EhrseqError, KeyError, OSError):
            return Finding("not_tested", "the prepared set of the pretraining is gone", tested)
        before = {split: theirs.timelines(split).subject_id for split in before}
    if not _are_those(seen, before):
        return Finding("not_tested", "the prepared set of the pretraining has changed", tested)
    finding = judge(
        len(np.intersect1d(np.concatenate(list(before.values())), held_out)),
        of=len(held_out),
        what="held-out subjects were seen in pretraining",
        clean="no held-out subject was seen in pretraining",
        tested=tested,
    )
    if finding.verdict == "leak" and not same_data:
        return replace(
            finding,
            verdict="warning",
            reason=f"{finding.reason}, by their ids; but in other data, so that they may be other people",
        )
    return finding


def _are_those(seen: Mapping[str, str], subjects: Mapping[str, Ints]) -> bool:
    return all(seen.get(split) == subjects_digest(ids) for split, ids in subjects.items())


def excluded_codes(data: AuditData, init: Origin) -> Finding:
    """The outcome's codes, its relatives and near-synonyms were no targets of one pretraining."""
    needed = names_of(excluded_targets(data.prepared, data.task.name), data.vocabulary)
    groups = {
        "the outcome's codes and their relatives": {*needed["outcome"], *needed["relatives"]},
        f"the run's {len(data.run.outcomes):,} outcomes": set(data.run.outcomes),
        "codes that stand beside the outcome in most subjects": set(needed["synonyms"]),
    }
    recorded = init.get("excluded_targets")
    excluded = {code for codes in (recorded or {}).values() for code in codes}
    known = None  # the codes that it knew, the only ones it can have predicted
    with suppress(EhrseqError, KeyError, OSError):
        vocabulary = Vocabulary.load(Path(init["folder"]))
        if vocabulary.digest == init.get("vocabulary"):
            known = set(vocabulary.tokens)
    targets = {
        name: [code for code in codes - excluded if known is None or code in known]
        for name, codes in groups.items()
    }
    whose = [name for name, codes in targets.items() if codes]
    tested = {"codes": sum(map(len, groups.values()))}
    if not whose:
        return Finding("passed", "nothing of the outcome was a target", tested)
    # a leak is an exclusion that missed the outcome; a pretraining without a task says that it excluded nothing
    is_leak = recorded is not None and next(iter(groups)) in whose
    return Finding(
        "leak" if is_leak else "warning",
        f"{' and '.join(whose)} were targets of the pretraining: part of its benefit is supervised learning",
        tested,
    )


CHECK = Check(
    "pretraining",
    "Were held-out subjects, and codes of the outcome, kept out of the pretraining?",
    pretraining,
)
