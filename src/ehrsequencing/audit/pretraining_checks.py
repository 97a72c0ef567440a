"""What the weights of a run saw before it was trained: checks of runs that started from another model (`--init`)."""

from pathlib import Path
from typing import Any

import numpy as np

from ehrsequencing.audit.data import AuditData, Check, Finding, judge
from ehrsequencing.errors import EhrseqError
from ehrsequencing.pretraining.exclusion import excluded_targets
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.training.pretrained import subjects_digest


def unseen_subjects(data: AuditData) -> Finding:
    """No held-out subject of this run was learned from before."""
    init: dict[str, Any] = data.run.manifest["init"]
    seen = init.get("subjects")
    own = {split: data.records[split].timelines.subject_id for split in ("train", "tuning", "held_out")}
    tested = {"held-out subjects": len(own["held_out"])}
    if not isinstance(seen, dict):
        return Finding("not_tested", "the model it started from does not record whom it saw", tested)
    digests = {split: subjects_digest(ids) for split, ids in own.items()}
    same_data = init.get("data_path") == data.prepared.manifest.get("data_path")
    if same_data and all(seen.get(split) == digests[split] for split in ("train", "tuning")):
        return Finding(
            "passed", "pretraining saw the training and tuning subjects of this run, and nobody else", tested
        )
    try:
        theirs = Prepared(Path(init["prepared"]))
        before = {split: theirs.timelines(split).subject_id for split in ("train", "tuning")}
    except (EhrseqError, KeyError, OSError):
        return Finding("not_tested", "the prepared set of the pretraining cannot be read any more", tested)
    if any(seen.get(split) != subjects_digest(ids) for split, ids in before.items()):
        return Finding("not_tested", "the prepared set of the pretraining is another one by now", tested)
    both = np.intersect1d(np.concatenate(list(before.values())), own["held_out"])
    what, clean = "held-out subjects were seen in pretraining", "no held-out subject was seen in pretraining"
    found = judge(len(both), of=len(own["held_out"]), what=what, clean=clean, tested=tested)
    if found.verdict == "leak" and not same_data:
        reason = f"ids of {found.reason.replace('were', 'also')} of other data: they may be other people"
        return Finding("warning", reason, tested, found.measured, found.bound)
    return found


def excluded_codes(data: AuditData) -> Finding:
    """The outcome's codes, its relatives and near-synonyms were no targets of the pretraining."""
    init: dict[str, Any] = data.run.manifest["init"]
    if "objectives" not in init:
        return Finding("not_tested", "the model it started from was not made by ehrseq pretrain")
    recorded = init.get("excluded_targets")
    if not isinstance(recorded, dict):
        reason = "the outcome's codes were targets of the pretraining: part of its benefit is supervised learning"
        return Finding("warning", f"{reason} (ehrseq pretrain --task excludes them)")
    needed = excluded_targets(data.prepared, data.task.name).names(data.vocabulary)
    theirs = {code for codes in recorded.values() for code in codes}
    must = {*needed["outcome"], *needed["relatives"]}
    tested = {"codes of the outcome and its relatives": len(must), "near-synonyms": len(needed["synonyms"])}
    if missing := must - theirs:
        what = "codes of the outcome or its relatives were targets of the pretraining"
        return judge(len(missing), of=len(must), what=what, clean="", tested=tested)
    if set(needed["synonyms"]) - theirs:
        return Finding("warning", "codes that stand beside the outcome in most subjects were targets", tested)
    return Finding("passed", "the outcome's codes, relatives and near-synonyms were no targets", tested)


CHECKS = (
    Check("pretraining_subjects", "Was no held-out subject seen in pretraining?", unseen_subjects),
    Check("pretraining_targets", "Were the outcome's codes no targets of the pretraining?", excluded_codes),
)
