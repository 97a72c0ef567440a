"""`python -m bench NAME`: every script is found, says what it asks, and measures processes in one way."""

import sys

import pytest

from bench.__main__ import benchmarks, first_line
from bench.measure import ROOT, quartiles, run


def test_every_benchmark_says_what_it_asks_and_how_it_is_run() -> None:
    assert {"engine", "real", "oracle"} <= benchmarks().keys()
    for name, module in benchmarks().items():
        assert len(first_line(module).split()) > 3
        path = ROOT / f"{module.replace('.', '/')}.py"
        assert f"python -m bench {name}" in path.read_text(encoding="utf-8"), name


def test_a_process_is_measured_with_those_that_it_starts() -> None:
    """The child keeps 64 MiB for a while and starts another process that computes."""
    inner = "sum(k * k for k in range(10 ** 6))"
    code = f"import subprocess, sys, time; x = bytearray(1 << 26); subprocess.run([sys.executable, '-c', {inner!r}])"
    child = run([sys.executable, "-c", f"{code}; time.sleep(0.2); print('{{\"a\": 1}}')"], threads=1)
    assert (child.code, child.json) == (0, {"a": 1})
    assert child.own_gib > 0.06
    assert child.peak_gib > 0.06
    assert 0 < child.cpu_s < 2 * child.wall_s


def test_a_process_that_fails_ends_the_benchmark_with_its_words() -> None:
    words = [sys.executable, "-c", "import sys; print('why'); sys.exit(3)"]
    with pytest.raises(SystemExit, match=r"(?s)ended with 3.*why"):
        run(words)
    assert run(words, must_succeed=False).code == 3


def test_quartiles_of_one_value_are_that_value() -> None:
    assert quartiles([3.0, 1.0, 2.0]) == [1.5, 2.0, 2.5]
    assert quartiles([2.0], scale=10) == [20.0] * 3
