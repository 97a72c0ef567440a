"""The search over settings: the best trial on the tuning split becomes the run, and a killed search goes on."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ehrsequencing.baselines.blend.train import trainer_of
from ehrsequencing.config import StudyConfig, load_study
from ehrsequencing.config.parts import idle_settings
from ehrsequencing.core.files import read_json
from ehrsequencing.prediction.run import Run
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.training import adapt, search
from ehrsequencing.training.loop import Progress, Trainer
from helpers.training import TINY, Interrupted, weights

THREE: tuple[adapt.Changes, ...] = (
    {},
    {"training": {"learning_rate": 1e-6, "warmup_steps": 50}},
    {"model": {"code_types": True}},
)


@pytest.fixture
def three(monkeypatch: pytest.MonkeyPatch) -> StudyConfig:
    """Three candidates; the second learns slowly."""
    monkeypatch.setattr(search, "CANDIDATES", THREE)
    return load_study(None, [*TINY, "training.search=3"])


def test_the_best_trial_becomes_the_run(sim_prepared: Path, tmp_path: Path, three: StudyConfig) -> None:
    out = tmp_path / "run"
    trainer_of(Prepared(sim_prepared), "simulated", out, study=three).fit()
    manifest, found = read_json(out / "manifest.json"), Run(out)
    nll = [trial["tuning_nll"] for trial in manifest["search"]]
    assert [trial["settings"] for trial in manifest["search"]] == [
        {}, {"training.learning_rate": 1e-6, "training.warmup_steps": 50}, {"model.code_types": True},
    ]  # fmt: skip
    best = min(range(3), key=nll.__getitem__)
    assert manifest["search_chose"] == best + 1
    assert len(set(nll)) == 3
    assert manifest["tuning_nll"] == nll[best]
    by_hand = load_study(None, [*TINY, *(["model.code_types=true"] if best == 2 else [])])
    Trainer(Prepared(sim_prepared), "simulated", tmp_path / "by-hand", study=by_hand).fit()
    assert weights(out) == weights(tmp_path / "by-hand")
    assert found.study.model.code_types is (best == 2)
    assert found.study.training.search == 1
    assert found.study.evaluation.tuning_trials == 3  # the boosted baseline tries as many
    assert sorted(p.name for p in out.iterdir()) == sorted(p.name for p in (tmp_path / "by-hand").iterdir())


@pytest.mark.slow
def test_a_killed_search_goes_on_to_the_same_bytes(sim_prepared: Path, tmp_path: Path, three: StudyConfig) -> None:
    store = Prepared(sim_prepared)
    trainer_of(store, "simulated", tmp_path / "whole", study=three).fit()

    def stop(progress: Progress) -> None:
        if (progress.trial, progress.epoch) == (3, 2):
            raise Interrupted

    with pytest.raises(Interrupted):
        trainer_of(store, "simulated", tmp_path / "run", study=three).fit(on_progress=stop)
    assert not (tmp_path / "run" / "manifest.json").exists()
    seen: list[int] = []
    trainer_of(store, "simulated", tmp_path / "run", study=three).fit(
        resume=True, on_progress=lambda p: seen.append(p.trial)
    )
    assert set(seen) == {3}
    assert weights(tmp_path / "run") == weights(tmp_path / "whole")
    trainer_of(store, "simulated", tmp_path / "run", study=three).fit(resume=True, on_progress=stop)  # nothing to do


@pytest.mark.slow
def test_members_and_a_blend_are_trained_with_the_settings_found(
    sim_prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "CANDIDATES", ({"training": {"learning_rate": 1e-7}}, {}))
    for number, more in enumerate((["training.members=2"], ["training.blend=true"])):
        study = load_study(None, [*TINY, *more, "training.search=2"])
        trainer_of(Prepared(sim_prepared), "simulated", tmp_path / str(number), study=study).fit()
        plain = load_study(None, [*TINY, *more])
        trainer_of(Prepared(sim_prepared), "simulated", tmp_path / f"by-hand-{number}", study=plain).fit()
        assert read_json(tmp_path / str(number) / "manifest.json")["search_chose"] == 2
        assert weights(tmp_path / str(number)) == weights(tmp_path / f"by-hand-{number}")


def test_what_the_user_gave_is_no_candidate(sim_prepared: Path) -> None:
    """Given settings stay, and candidates that then are alike are tried once."""
    everything = {f"{s}.{k}": v for one in search.CANDIDATES for s, values in one.items() for k, v in values.items()}
    many, store = "training.search=99", Prepared(sim_prepared)
    assert len(search.trials_of(load_study(None, [many]), store, "simulated")) == len(search.CANDIDATES)
    asked = load_study(None, [many, *(f"{name}={json.dumps(value)}" for name, value in everything.items())])
    (only,) = search.trials_of(asked, store, "simulated")
    own = {name.partition(".")[2]: value for name, value in everything.items()}
    assert own.items() <= (only[1].model.model_dump() | only[1].training.model_dump()).items()


def test_defaults_follow_from_the_events_of_the_cohort(sim_prepared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Prepared(sim_prepared)
    rows = store.records("simulated", "train").rows
    by_hand = {int(s) for s, cause in zip(rows.subject, rows.cause, strict=True) if cause == 1}
    assert adapt.subjects_with_event(rows) == len(by_hand) > 20
    study = load_study(None, ["model.dropout=0.1"])
    monkeypatch.setattr(adapt, "FEW_EVENTS", len(by_hand) + 1)
    few = adapt.adapted(study, store, "simulated").model
    assert (few.size, few.dim, few.dropout, few.code_dropout, few.wide_head) == ("small", 64, 0.1, 0.3, True)
    monkeypatch.setattr(adapt, "FEW_EVENTS", len(by_hand))
    assert adapt.adapted(study, store, "simulated") == study


@given(
    parts=st.fixed_dictionaries(
        {"architecture": st.sampled_from(["hierarchical", "flat"]), "head": st.sampled_from(["horizon", "visit"])},
        optional={"age_bin_years": st.just(0), "size": st.just("large")},
    )
)
def test_a_cohorts_defaults_fit_every_combination_of_parts(parts: dict[str, object]) -> None:
    """They raise no error about a setting that a part does not use, and change nothing that was given."""
    model = adapt.with_defaults(StudyConfig.model_validate({"model": parts}), adapt.OF_FEW_EVENTS).model
    assert parts.items() <= model.model_dump().items()
    assert not [
        name for name in idle_settings(dict(model)) if name in adapt.OF_FEW_EVENTS["model"] and getattr(model, name)
    ]
