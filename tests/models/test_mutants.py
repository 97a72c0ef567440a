"""Broken models: each named check must fail on its mutant, pass on the model, and have a mutant."""

import pytest

from helpers.mutants import CHECKS, MUTANTS, Mutant

CASES = [pytest.param(mutant, check, id=f"{mutant.name}-{check}") for mutant in MUTANTS for check in mutant.caught_by]


@pytest.mark.parametrize("name", CHECKS)
def test_every_check_passes_on_the_model(name: str) -> None:
    CHECKS[name]()


@pytest.mark.parametrize(("broken", "check"), CASES)
def test_a_mutant_is_caught(broken: Mutant, check: str, monkeypatch: pytest.MonkeyPatch) -> None:
    broken.apply(monkeypatch)
    with pytest.raises(AssertionError):
        CHECKS[check]()


def test_every_check_has_a_mutant() -> None:
    caught = {check for mutant in MUTANTS for check in mutant.caught_by}
    assert set(CHECKS) - caught == set()
