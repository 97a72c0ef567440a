"""Results of pieces of work as files: what comes back is what went in, and a file can name nothing else."""

import io
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ehrsequencing.config import load_study, load_task
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.records import parallel
from ehrsequencing.records.plain_results import from_bytes, read_result, to_bytes, write_result
from ehrsequencing.records.prepared import prepare


def same(one: Any, other: Any) -> bool:
    """Equal in type and content, arrays to the bit."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    if isinstance(one, Mapping):
        if getattr(one, "places", None) != getattr(other, "places", None):
            return False
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if is_dataclass(one) or type(one).__module__.startswith("ehrsequencing.records"):
        return same(vars(one), vars(other))
    return bool(one == other)


def test_every_result_of_a_real_preparation_comes_back(sim_data: Path, tmp_path: Path, monkeypatch: Any) -> None:
    results = list[Any]()
    plain = parallel.Workers.in_order

    def kept(self: Any, method: Any, items: Any, *, mapped: bool = False) -> Any:
        for result in plain(self, method, items, mapped=mapped):
            results.append(result)
            yield from_bytes(to_bytes(result), where="a result")

    task = load_task(sim_data / "task.yaml")
    prepare(sim_data, tmp_path / "one", study=load_study(None), tasks=[task])
    monkeypatch.setattr(parallel.Workers, "in_order", kept)
    prepare(sim_data, tmp_path / "two", study=load_study(None), tasks=[task], processes=2)
    for path in sorted(path for path in (tmp_path / "one").rglob("*") if path.is_file()):
        assert path.read_bytes() == (tmp_path / "two" / path.relative_to(tmp_path / "one")).read_bytes(), path.name
    assert len(results) > 3
    assert all(same(from_bytes(to_bytes(result), where=""), result) for result in results)
    assert all(same(through_file(result, tmp_path / "result"), result) for result in results)


def through_file(value: Any, path: Path) -> Any:
    """What comes back from a file of `write_result`."""
    write_result(value, path)
    mapped = read_result(path, mapped=True)
    path.unlink()  # arrays that lie in it stay
    assert same(mapped, value)
    write_result(value, path)
    return read_result(path)


def test_containers_keys_and_numbers_come_back(tmp_path: Path) -> None:
    value = {(1, "a"): [None, True, 2.5, float("inf"), {"x"}, frozenset({2})], "c": Counter("aab"), "p": Path("a/b"),
             "n": np.float32(0.1), "i": np.int64(7), "m": np.array([["é", "b"]]), "e": (), "t": ("é", "b"),
             "s": np.arange(12).reshape(3, 4)[:, ::2], "0": np.zeros((0, 3), np.float32)}  # fmt: skip
    assert same(from_bytes(to_bytes(value), where=""), value)
    assert same(through_file(value, tmp_path / "value"), value)
    found = through_file({"one": np.arange(3), "two": np.arange(5)}, tmp_path / "value")
    found["one"] += 1  # its memory is its own
    assert found["two"].tolist() == [0, 1, 2, 3, 4]


class Stranger:
    """A class that no result may name."""


def test_a_stranger_is_neither_written_nor_made(tmp_path: Path) -> None:
    for value in (Stranger(), [print], {"a": np.array([Stranger()])}):
        with pytest.raises(TypeError, match="cannot be stored"):
            to_bytes(value)
        with pytest.raises(TypeError, match="cannot be stored"):
            write_result(value, tmp_path / "value")
    for text in ({"class": "Stranger", "content": {}}, {"class": "Popen", "content": {"args": "ls"}}, {"eval": "1"}):
        out = io.BytesIO()
        np.savez(out, json=np.frombuffer(json.dumps(text).encode(), dtype=np.uint8))
        with pytest.raises(EhrseqError, match="damaged"):
            from_bytes(out.getvalue(), where="a result")
    pickled = io.BytesIO()
    np.savez(pickled, json=np.array([Stranger()]))
    for content in (pickled.getvalue(), b"", b"PK", to_bytes([1, 2])[:-30]):
        with pytest.raises(EhrseqError, match="damaged"):
            from_bytes(content, where="a result")
