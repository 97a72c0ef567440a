"""The demo: the whole way once, and nothing done twice."""

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from ehrsequencing import demo
from ehrsequencing.errors import EhrseqError


def quiet(*_: object) -> AbstractContextManager[Any]:
    return nullcontext(lambda *_: None)


def test_the_demo_ends_with_the_report_and_a_second_call_does_nothing_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = ("model.dim=16", "model.heads=2", "model.layers=1", "training.epochs=2", "evaluation.bootstrap=10")
    monkeypatch.setattr(demo, "SETTINGS", (*tiny, "evaluation.baselines=none"))

    def run(seed: int = 0) -> tuple[dict[str, Any], list[str]]:
        lines: list[str] = []
        out = tmp_path / "demo"
        metrics = demo.run_demo(out, subjects=300, seed=seed, say=lines.append, bar=quiet, training_bar=quiet)
        return metrics, lines

    first, said = run()
    report = tmp_path / "demo" / "run" / "report.html"
    assert f"Open {report}" in "\n".join(said)
    expected = first["oracle"]["gain_share_expected"]
    (told,) = (line for line in said if "of the gain in likelihood" in line)
    assert f"reaches {expected:.0%} of the gain" in told  # by what the truth expects, not by what happened
    assert "over 4 seeds of 4,000 patients" in told
    assert "ehrseq predict" in said[-1]
    written = {p: p.stat().st_mtime_ns for p in (tmp_path / "demo").rglob("*") if p.is_file() and p.suffix}
    second, again = run()
    assert second == first
    assert not any(line.startswith(("1/5", "2/5", "3/5", "4/5", "5/5")) for line in again)
    assert written == {p: p.stat().st_mtime_ns for p in (tmp_path / "demo").rglob("*") if p.is_file() and p.suffix}
    with pytest.raises(EhrseqError, match="something else"):
        run(seed=1)
