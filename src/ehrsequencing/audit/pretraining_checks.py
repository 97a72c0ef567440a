"""What the weights of a run saw before it was trained: checks of runs that started from another model (`--init`).

That model may have started from another one, too. Every model of the chain is checked.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ehrsequencing.audit.data import AuditData, Check, Finding, judge
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.vocabulary import Vocabulary
from ehrsequencing.training.pretraining.targets import excluded_targets
from ehrsequencing.training.run_folder import links, subjects_digest

Link = Mapping[str, Any]
_GRAVEST = ("leak", "warning", "not_tested", "passed")


def unseen_subjects(data: AuditData) -> Finding:
    """No held-out subject of this run was learned from before."""
    return _gravest(data, list(links(data.run.manifest["init"])), _unseen_in)


def excluded_codes(data: AuditData) -> Finding:
    """The outcome's codes, its relatives and near-synonyms were no targets of the pretraining."""
    made = [link for link in links(data.run.manifest["init"]) if "objectives" in link]
    if not made:
        return Finding("not_tested", "no model that it goes back to was made by ehrseq pretrain")
    return _gravest(data, made, _excluded_in)


def _gravest(
    data: AuditData, chain: list[Link], check: Callable[[AuditData, Link], Finding]
) -> Finding:
    """The gravest finding of a chain of models; the nearest of them where several are as grave."""
    found = [check(data, link) for link in chain]
    worst = min(range(len(found)), key=lambda k: (_GRAVEST.index(found[k].verdict), k))
    if worst == 0 or len(chain) == 1:
        return found[worst]
    place = f"(model {worst + 1} of the {len(chain)} that the run goes back to)"
    return replace(found[worst], reason=f"{found[worst].reason} {place}")


def _unseen_in(data: AuditData, init: Link) -> Finding:
    """Of one model."""
    seen = init.get("subjects")
    own = {
        split: data.records[split].timelines.subject_id for split in ("train", "tuning", "held_out")
    }
    tested = {"held-out subjects": len(own["held_out"])}
    if not isinstance(seen, dict):
        return Finding(
            "not_tested", "the model it started from does not record whom it saw", tested
        )
    digests = {split: subjects_digest(ids) for split, ids in own.items()}
    same_data = init.get("data_path") == data.prepared.manifest.get("data_path")
    if same_data and all(seen.get(split) == digests[split] for split in ("train", "tuning")):
        return Finding(
            "passed",
            "pretraining saw the training and tuning subjects of this run, and nobody else",
            tested,
        )
    try:
        theirs = Prepared(Path(init["prepared"]))
        before = {split: theirs.timelines(split).subject_id for split in ("train", "tuning")}
    except (EhrseqError, KeyError, OSError):
        return Finding(
            "not_tested", "the prepared set of the pretraining cannot be read any more", tested
        )
    if any(seen.get(split) != subjects_digest(ids) for split, ids in before.items()):
        return Finding(
            "not_tested", "the prepared set of the pretraining is another one by now", tested
        )
    both = np.intersect1d(np.concatenate(list(before.values())), own["held_out"])
    what, clean = (
        "held-out subjects were seen in pretraining",
        "no held-out subject was seen in pretraining",
    )
    found = judge(len(both), of=len(own["held_out"]), what=what, clean=clean, tested=tested)
    if found.verdict == "leak" and not same_data:
        reason = (
            f"ids of {found.reason.replace('were', 'also')} of other data: they may be other people"
        )
        return Finding("warning", reason, tested, found.measured, found.bound)
    return found


def _excluded_in(data: AuditData, init: Link) -> Finding:
    """Of one pretraining."""
    recorded, outcomes = init.get("excluded_targets"), data.run.outcomes
    if not isinstance(recorded, dict):
        whose = (
            f"the outcome's codes and the run's {len(outcomes):,} outcomes"
            if outcomes
            else "the outcome's codes"
        )
        reason = (
            f"{whose} were targets of the pretraining: part of its benefit is supervised learning"
        )
        return Finding("warning", f"{reason} (ehrseq pretrain --task excludes them)")
    needed = excluded_targets(data.prepared, data.task.name).names(data.vocabulary)
    known = _codes_of(init)
    theirs = {code for codes in recorded.values() for code in codes}

    def as_targets(codes: set[str]) -> set[str]:
        return {code for code in codes - theirs if known is None or code in known}

    must = {*needed["outcome"], *needed["relatives"]}
    tested = {
        "codes of the outcome and its relatives": len(must),
        "near-synonyms": len(needed["synonyms"]),
    }
    tested |= {"outcomes": len(outcomes)} if outcomes else {}
    if missing := as_targets(must):
        what = "codes of the outcome or its relatives were targets of the pretraining"
        return judge(len(missing), of=len(must), what=what, clean="", tested=tested)
    if missing := as_targets(set(outcomes)):
        some = "" if len(missing) == len(outcomes) else f"{len(missing):,} of "
        reason = f"{some}the run's {len(outcomes):,} outcomes were targets of the pretraining"
        return Finding("warning", f"{reason}: part of its benefit is supervised learning", tested)
    if as_targets(set(needed["synonyms"])):
        return Finding(
            "warning", "codes that stand beside the outcome in most subjects were targets", tested
        )
    whose = "the outcome's codes, relatives and near-synonyms" + (
        " and all outcomes" if outcomes else ""
    )
    return Finding("passed", f"{whose} were no targets", tested)


def _codes_of(init: Link) -> set[str] | None:
    """The codes that a model knew, the only ones it can have predicted; None where its folder is gone or another."""
    try:
        vocabulary = Vocabulary.load(Path(init["folder"]))
    except (EhrseqError, KeyError, OSError):
        return None
    return set(vocabulary.tokens) if vocabulary.digest == init.get("vocabulary") else None


CHECKS = (
    Check("pretraining_subjects", "Was no held-out subject seen in pretraining?", unseen_subjects),
    Check(
        "pretraining_targets",
        "Were the outcome's codes no targets of the pretraining?",
        excluded_codes,
    ),
)
