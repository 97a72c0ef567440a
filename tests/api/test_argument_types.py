"""A value of a wrong type is refused by the argument's name, by every public function, before anything is done."""

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ehrsequencing as eh
from ehrsequencing.core.elsewhere import fits
from ehrsequencing.core.errors import EhrseqError

SECRET = "4711-Anna"
VALUES: tuple[Any, ...] = (SECRET, [SECRET], 1, 1.5, True, [True], {"a": 1}, None, len, object())
FUNCTIONS = [
    name for name in eh.__all__ if inspect.isfunction(getattr(eh, name)) and name not in ("visit_encoder", "save_run")
]
CASES = [
    (name, one.name)
    for name in FUNCTIONS
    for one in inspect.signature(getattr(eh, name)).parameters.values()
    if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)
]


@pytest.mark.parametrize(("name", "argument"), CASES)
def test_a_wrong_type_is_refused_by_name(
    name: str, argument: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    function = getattr(eh, name)
    parameters = inspect.signature(function).parameters
    hint = parameters[argument].annotation
    wrong = [value for value in VALUES if not fits(value, hint)]
    given = {
        one.name: next(value for value in VALUES if fits(value, one.annotation))
        for one in parameters.values()
        if one.default is one.empty and one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)
    }
    for value in wrong:
        with pytest.raises(EhrseqError, match=f"{argument} must be ") as refused:
            function(**(given | {argument: value}))
        assert SECRET not in str(refused.value)
    assert list(tmp_path.iterdir()) == []


def test_most_arguments_are_checked() -> None:
    checked = [
        argument
        for name, argument in CASES
        if not all(fits(v, inspect.signature(getattr(eh, name)).parameters[argument].annotation) for v in VALUES)
    ]
    assert len(checked) > 0.4 * len(CASES)


def test_numpys_truths_are_truths() -> None:
    assert fits(np.bool_(True), bool)
    assert not fits(np.bool_(True), int)
    assert not fits(np.int64(1), bool)
    assert fits(np.array([1.0]), list[float])


def test_the_told_cases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(EhrseqError, match="prepare: overwrite must be bool, not str"):
        eh.prepare("meds", out="out", overwrite="no")  # type: ignore[arg-type]
    with pytest.raises(EhrseqError, match=r"no setting|unknown"):
        eh.drift("run", "meds", limits={"peeple": 0.3})
