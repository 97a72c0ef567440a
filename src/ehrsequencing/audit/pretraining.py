"""What the weights of a run saw before it was trained, if it started from another model (`--init`).

That model may have started from another one, too. Every model of the chain is checked.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ehrsequencing.audit.data import SPLITS, AuditData, Check, Finding, judge
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.vocabulary import Vocabulary
from ehrsequencing.training.pretraining.targets import excluded_targets
from ehrsequencing.training.run_folder import links, subjects_digest

Link = Mapping[str, Any]
_GRAVEST = ("leak", "warning", "not_tested", "passed")


def pretraining(data: AuditData) -> Finding:
    """Nobody held out was seen, and nothing of the outcome was a target, in any model that the run goes back to."""
    chain = list(links(data.run.manifest["init"]))
    found = list[Finding]()
    for place, link in enumerate(chain, start=1):
        parts = [unseen_subjects(data, link)]
        if "objectives" in link:  # made by ehrseq pretrain
            parts.append(excluded_codes(data, link))
        where = (
            f" (model {place} of the {len(chain)} that the run goes back to)" if place > 1 else ""
        )
        found += [replace(part, reason=part.reason + where) for part in parts]
    if all(one.verdict == "passed" for one in found):
        return replace(found[0], reason="; ".join(dict.fromkeys(one.reason for one in found)))
    return min(found, key=lambda one: _GRAVEST.index(one.verdict))


def unseen_subjects(data: AuditData, init: Link) -> Finding:
    """No held-out subject of this run was learned from by one model before."""
    own = {split: data.records[split].timelines.subject_id for split in SPLITS}
    tested = {"held-out subjects": len(own["held_out"])}
    seen = init.get("subjects")
    if not isinstance(seen, dict):
        why = "the model it started from does not record whom it saw"
        return Finding("not_tested", why, tested)
    same_data = init.get("data_path") == data.prepared.manifest.get("data_path")
    clean = "no held-out subject was seen in pretraining"
    digests = {split: subjects_digest(own[split]) for split in ("train", "tuning")}
    if same_data and all(seen.get(split) == digests[split] for split in digests):
        return Finding("passed", clean, tested)
    try:
        theirs = Prepared(Path(init["prepared"]))
        before = {split: theirs.timelines(split).subject_id for split in digests}
    except (EhrseqError, KeyError, OSError):
        before = {}
    if not before or any(seen.get(name) != subjects_digest(ids) for name, ids in before.items()):
        why = "the prepared set of the pretraining is gone, or another one by now"
        return Finding("not_tested", why, tested)
    both = np.intersect1d(np.concatenate(list(before.values())), own["held_out"])
    what = "held-out subjects were seen in pretraining"
    found = judge(len(both), of=len(own["held_out"]), what=what, clean=clean, tested=tested)
    if found.verdict == "leak" and not same_data:
        reason = (
            f"{found.reason}, by their ids; but it was other data, so that they may be other people"
        )
        return replace(found, verdict="warning", reason=reason)
    return found


def excluded_codes(data: AuditData, init: Link) -> Finding:
    """The outcome's codes, its relatives and near-synonyms were no targets of one pretraining."""
    recorded, outcomes = init.get("excluded_targets"), set(data.run.outcomes)
    needed = excluded_targets(data.prepared, data.task.name).names(data.vocabulary)
    own = {*needed["outcome"], *needed["relatives"]}
    tested = {"codes of the outcome and its relatives": len(own)}
    excluded = {code for codes in (recorded or {}).values() for code in codes}
    known = _codes_of(init)

    def targets(codes: set[str]) -> int:
        return sum(known is None or code in known for code in codes - excluded)

    if recorded is not None and (missing := targets(own)):
        what = "codes of the outcome or its relatives were targets of the pretraining"
        return judge(missing, of=len(own), what=what, clean="", tested=tested)
    whose = list[str]()
    if recorded is None:
        whose.append("the outcome's codes")
    if outcomes and (recorded is None or targets(outcomes)):
        some = (
            ""
            if recorded is None or targets(outcomes) == len(outcomes)
            else f"{targets(outcomes):,} of "
        )
        whose.append(f"{some}the run's {len(outcomes):,} outcomes")
    if recorded is not None and targets(set(needed["synonyms"])):
        whose.append("codes that stand beside the outcome in most subjects")
    if whose:
        reason = f"{' and '.join(whose)} were targets of the pretraining: part of its benefit is supervised learning"
        return Finding("warning", f"{reason} (ehrseq pretrain --task excludes them)", tested)
    return Finding("passed", "nothing of the outcome was a target", tested)


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
