"""Defaults that follow from the size of the cohort."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ehrsequencing.config import StudyConfig, load_study
from ehrsequencing.config.parts import idle_settings
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.training import resolve


def test_defaults_follow_from_the_events_of_the_cohort(sim_prepared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Prepared(sim_prepared)
    rows = store.records("simulated", "train").rows
    by_hand = {int(s) for s, cause in zip(rows.subject, rows.cause, strict=True) if cause == 1}
    assert resolve.subjects_with_event(rows) == len(by_hand) > 20
    study = load_study(None, ["model.dropout=0.1"])
    monkeypatch.setattr(resolve, "FEW_EVENTS", len(by_hand) + 1)
    few = resolve.study_for_cohort(study, store, "simulated").model
    assert (few.size, few.dim, few.dropout, few.code_dropout, few.wide_head) == ("small", 64, 0.1, 0.3, True)
    monkeypatch.setattr(resolve, "FEW_EVENTS", len(by_hand))
    assert resolve.study_for_cohort(study, store, "simulated") == study


@given(
    parts=st.fixed_dictionaries(
        {"architecture": st.sampled_from(["hierarchical", "flat"]), "head": st.sampled_from(["horizon", "visit"])},
        optional={"age_bin_years": st.just(0), "size": st.just("large")},
    )
)
def test_a_cohorts_defaults_fit_every_combination_of_parts(parts: dict[str, object]) -> None:
    """They raise no error about a setting that a part does not use, and change nothing that was given."""
    model = resolve.with_defaults(StudyConfig.model_validate({"model": parts}), resolve.OF_FEW_EVENTS).model
    assert parts.items() <= model.model_dump().items()
    assert not [
        name for name in idle_settings(dict(model)) if name in resolve.OF_FEW_EVENTS["model"] and getattr(model, name)
    ]
