"""What a result was made of: parts by name, and values that are remembered in the user's cache."""

from pathlib import Path

import pytest

from ehrsequencing.core.files import remembered
from ehrsequencing.core.made_of import differing, made_of


def test_what_differs_has_the_name_of_its_setting() -> None:
    made = made_of(split="train", training={"epochs": 3, "seed": 0}, records=7)
    assert differing(made, made) == []
    assert differing(made, made_of(split="train", training={"epochs": 4, "seed": 0}, records=7)) == ["training.epochs"]
    assert differing(made, made_of(split="tuning", training={"epochs": 3}, records=7)) == ["split", "training.seed"]
    assert differing(made, None) == list(made)  # an output of an earlier version


def test_other_formulas_are_another_result(monkeypatch: pytest.MonkeyPatch) -> None:
    before = made_of(records=7)
    monkeypatch.setattr("ehrsequencing.core.made_of.FORMULAS", 99)
    assert differing(made_of(records=7), before) == ["formulas"]


def test_a_value_is_made_once_for_each_key_and_again_where_the_cache_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EHRSEQ_CACHE", str(tmp_path / "cache"))
    made: list[int] = []

    def make() -> int:
        made.append(len(made))
        return len(made)

    assert [remembered(key, make) for key in ("a", "a", "b", "a")] == [1, 1, 2, 1]
    for path in (tmp_path / "cache").iterdir():
        assert path.stat().st_mode & 0o077 == 0
        path.write_text("{")
    assert remembered("a", make) == 3
    monkeypatch.setenv("EHRSEQ_CACHE", "/proc/nowhere")  # where nobody can write
    assert [remembered("a", make), remembered("a", make)] == [4, 5]
