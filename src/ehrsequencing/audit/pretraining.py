"""What the weights of a run saw before it was trained, if it started from another model (`--init`).

That model may have started from another one, too. Every model of the chain is checked.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ehrsequencing.audit.data import AuditData, Check, Finding, judge
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.vocabulary import Vocabulary
from ehrsequencing.training.pretraining.targets import excluded_targets, names_of
from ehrsequencing.training.run_folder import subjects_digest
from ehrsequencing.training.transfer import links

Link = Mapping[str, Any]
_GRAVEST = ("leak", "warning", "not_tested", "passed")


def pretraining(data: AuditData) -> Finding:
    """Nobody held out was seen, and nothing of the outcome was a target, in any model that the run goes back to."""
    found = list[Finding]()
    for place, link in enumerate(links(data.run.manifest["init"]), start=1):
        parts = [unseen_subjects(data, link)]
        if "objectives" in link:  # made by ehrseq pretrain
            parts.append(excluded_codes(data, link))
        where = f" (model {place} that the run goes back to)" if place > 1 else ""
        found += [replace(part, reason=part.reason + where) for part in parts]
    if all(one.verdict == "passed" for one in found):
        return replace(found[0], reason="; ".join(one.reason for one in found))
    return min(found, key=lambda one: _GRAVEST.index(one.verdict))


def unseen_subjects(data: AuditData, init: Link) -> Finding:
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
    found = judge(
        len(np.intersect1d(np.concatenate(list(before.values())), held_out)),
        of=len(held_out),
        what="held-out subjects were seen in pretraining",
        clean="no held-out subject was seen in pretraining",
        tested=tested,
    )
    if found.verdict == "leak" and not same_data:
        reason = (
            f"{found.reason}, by their ids; but in other data, so that they may be other people"
        )
        return replace(found, verdict="warning", reason=reason)
    return found


def _are_those(seen: Mapping[str, str], subjects: Mapping[str, Any]) -> bool:
    return all(seen.get(split) == subjects_digest(ids) for split, ids in subjects.items())


def excluded_codes(data: AuditData, init: Link) -> Finding:
    """The outcome's codes, its relatives and near-synonyms were no targets of one pretraining."""
    needed = names_of(excluded_targets(data.prepared, data.task.name), data.vocabulary)
    groups = {
        "the outcome's codes and their relatives": {*needed["outcome"], *needed["relatives"]},
        f"the run's {len(data.run.outcomes):,} outcomes": set(data.run.outcomes),
        "codes that stand beside the outcome in most subjects": set(needed["synonyms"]),
    }
    recorded = init.get("excluded_targets")
    excluded = {code for codes in (recorded or {}).values() for code in codes}
    known = _codes_of(init)
    targets = {
        name: [code for code in codes - excluded if known is None or code in known]
        for name, codes in groups.items()
    }
    whose = [name for name, codes in targets.items() if codes]
    tested = {"codes": sum(map(len, groups.values()))}
    if not whose:
        return Finding("passed", "nothing of the outcome was a target", tested)
    # without a task nothing was excluded, and everybody knows; an exclusion that missed the outcome is a leak
    is_leak = recorded is not None and next(iter(groups)) in whose
    reason = f"{' and '.join(whose)} were targets of the pretraining: part of its benefit is supervised learning"
    return Finding("leak" if is_leak else "warning", reason, tested)


def _codes_of(init: Link) -> set[str] | None:
    """The codes that a model knew, the only ones it can have predicted; None where its folder is gone or another."""
    try:
        vocabulary = Vocabulary.load(Path(init["folder"]))
    except (EhrseqError, KeyError, OSError):
        return None
    return set(vocabulary.tokens) if vocabulary.digest == init.get("vocabulary") else None


CHECK = Check(
    "pretraining",
    "Were held-out subjects, and codes of the outcome, kept out of the pretraining?",
    pretraining,
)
