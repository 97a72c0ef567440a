"""`prepare` over several processes: the same bytes, the same errors; and the fast orders and samples it stands on."""

import os
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from ehrsequencing.config import StudyConfig, ValuesConfig, load_study
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.records import prepare as prepare_room, scales as samples_room, shards as shards_room
from ehrsequencing.records.codes import CodeMatcher
from ehrsequencing.records.meds import MedsReader, find_shards
from ehrsequencing.records.prepare import prepare
from ehrsequencing.records.scales import KNOTS, Sample
from ehrsequencing.records.shards import call_in_order
from ehrsequencing.records.vocabulary import Vocabulary
from ehrsequencing.records.vocabulary_fit import VocabularyFit
from helpers.meds import Row, us, write_meds
from helpers.settings import examples
from helpers.shards import PARENTS, STUDY, TASK, rows_of
from helpers.storage import everything


def test_any_number_of_processes_makes_the_same_bytes(sharded: Path, tmp_path: Path) -> None:
    made = {}
    for processes in (1, 2):
        ticks: list[tuple[int, int]] = []
        out = tmp_path / f"out-{processes}"
        prepare(
            sharded,
            out,
            study=STUDY,
            tasks=[TASK],
            processes=processes,
            progress=lambda *done, to=ticks: to.append(done),
        )
        assert ticks == [(k + 1, 5) for k in range(5)]  # four shards, and one range of subjects
        made[processes] = everything(out)
    assert made[1] == made[2]
    assert b"duplicates" in made[2]["manifest.json"]
    assert len(np.load(tmp_path / "out-2" / "visits" / "train" / "codes.npy")) > 100


def refusal(data: Path, out: Path, processes: int) -> str:
    with pytest.raises(EhrseqError) as error:
        prepare(data, out, study=StudyConfig(), tasks=[TASK], processes=processes)
    assert not out.exists()
    assert [p.name for p in out.parent.iterdir() if p.name.startswith(".tmp")] == []
    return str(error.value)


def test_bad_input_in_a_worker_is_the_same_one_error(tmp_path: Path) -> None:
    """Two shards are bad: the first of them is named, whichever process comes first. Then one subject is in two."""
    rows = rows_of(24)
    rows += [Row(who, us("1990-01-01"), "MEDS_BIRTH") for who in (2, 3)]
    data = write_meds(tmp_path / "data", rows, shards=4)
    found = [refusal(data, tmp_path / "out", processes) for processes in (1, 2)]
    assert found[0] == found[1]
    assert "a subject has two births" in found[0]
    assert str(find_shards(data)[2]) in found[0]
    first, *_, last = find_shards(write_meds(tmp_path / "data", rows_of(24), shards=4))
    last.write_bytes(first.read_bytes())
    found = [refusal(data, tmp_path / "out", processes) for processes in (1, 2)]
    assert found[0] == found[1]
    assert "two shards" in found[0]


@dataclass
class Dying:
    """Work that kills its process, as the system does when memory runs out."""

    folder: Path
    key: str = "dying"

    def die(self) -> None:
        os._exit(9)


def test_a_killed_process_is_a_clear_error(tmp_path: Path) -> None:
    with joblib.parallel_config("loky", n_jobs=2), pytest.raises(EhrseqError, match="a process was killed"):
        list(call_in_order(Dying(tmp_path), "die", [(), ()], jobs=2))


quiet = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")


@contextmanager
def dask_cluster() -> Iterator[Any]:
    """A scheduler and two worker processes on loopback."""
    distributed = pytest.importorskip("distributed", reason="needs the extra dask")
    kind = {"n_workers": 2, "threads_per_worker": 1, "host": "127.0.0.1", "dashboard_address": ":0"}
    with distributed.LocalCluster(processes=True, silence_logs=50, **kind) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def dask() -> Iterator[Any]:
    with dask_cluster() as cluster:
        yield cluster


def engine_of(cluster: Any) -> str:
    return "dask://" + cluster.scheduler_address.removeprefix("tcp://")


@pytest.mark.slow
@quiet
def test_dask_makes_the_same_bytes(
    sharded: Path, of_one_process: dict[str, bytes], dask: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a relative folder is the same folder for workers that run elsewhere
    prepare(sharded, Path("set"), study=STUDY, tasks=[TASK], engine=engine_of(dask))
    assert everything(tmp_path / "set") == of_one_process


def test_a_cluster_that_does_not_answer(sharded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed", reason="needs the extra dask")
    monkeypatch.setattr(shards_room, "_WAIT_SECONDS", 1)
    with pytest.raises(EhrseqError, match="no scheduler answers"):
        prepare(sharded, tmp_path / "set", study=STUDY, tasks=[TASK], engine="dask://127.0.0.1:1")
    assert not (tmp_path / "set").exists()


def test_ranges_of_subjects_make_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many ranges the second pass goes through, and however the shards were cut."""
    made = []
    for shards, rows in ((4, 500_000), (4, 100), (1, 7)):
        monkeypatch.setattr(prepare_room, "RANGE_ROWS", rows)
        data = write_meds(tmp_path / f"{shards}-{rows}" / "data", rows_of(60), shards=shards, parents=PARENTS)
        prepare(data, out := tmp_path / f"{shards}-{rows}" / "out", study=StudyConfig(), tasks=[TASK], processes=1)
        assert not list(out.glob(".*"))  # nothing of the kept rows is left
        made.append({name: bytes_ for name, bytes_ in everything(out).items() if name != "manifest.json"})
    assert made[0] == made[1] == made[2]


@settings(max_examples=examples(100), deadline=None)
@given(shards=st.integers(1, 5), sample=st.integers(1, 8), seed=st.integers(0, 99))
def test_merged_fits_are_the_fit_of_all_shards(
    tmp_path_factory: pytest.TempPathFactory, shards: int, sample: int, seed: int
) -> None:
    data = write_meds(tmp_path_factory.mktemp("fit") / "data", rows_of(10 + seed % 9), shards=shards, parents=PARENTS)
    study = load_study(None, ["vocabulary.min_subjects=2"])

    def new() -> VocabularyFit:
        return VocabularyFit(study.vocabulary, study.values, excluded=CodeMatcher([]))

    whole, merged = new(), new()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(samples_room, "SAMPLE", sample)
        patch.setattr(samples_room, "WAITING", 3)
        for events in MedsReader(data):
            ids, row = events.subjects
            is_training = (ids % 4 != seed % 4)[row]
            one = new()
            for fit in (whole, one):
                fit.update(events, row, is_training)
            merged.merge(pickle.loads(pickle.dumps(one)))
        assert merged.finish().digest == whole.finish().digest
    assert merged.number == whole.number
    assert merged.subjects.tolist() == whole.subjects.tolist()
    assert merged.rows.tolist() == whole.rows.tolist()


@settings(max_examples=examples(400), deadline=None)
@given(
    rows=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 12), st.integers(0, 9)), max_size=60),
    cuts=st.integers(1, 6),
    most=st.integers(1, 6),
)
def test_a_sample_holds_the_smallest_hashes(rows: list[tuple[int, int, int]], cuts: int, most: int) -> None:
    """Against sorting everything, ties of the hash included."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(samples_room, "SAMPLE", most)
        patch.setattr(samples_room, "WAITING", 4)
        sample = Sample()
        for part in range(cuts):
            some = rows[part::cuts]
            key, hashed, value = (np.array([row[k] for row in some], dtype=np.int64) for k in range(3))
            sample.add(key, hashed.astype(np.uint64), value.astype(np.float64), (value + 7).astype(np.uint32))
        found = sample.by_key()
    for one in range(4):
        expected = sorted((h, v) for k, h, v in rows if k == one)[:most]
        value, owner = found.of(one)
        assert sorted(value.tolist()) == sorted(v for _, v in expected)
        assert owner.tolist() == [v + 7 for v in value.tolist()]


@given(
    seed=st.integers(0, 1 << 32),
    n=st.integers(1, 4),
    asked=st.lists(st.tuples(st.integers(0, 3), st.integers(-62, 62)), max_size=30),
)
def test_ranks_are_those_of_a_plain_search(seed: int, n: int, asked: list[tuple[int, int]]) -> None:
    """Below the first knot 0, above the last 1, in the middle of a run of equals, else between two knots."""
    table = np.sort(np.random.default_rng(seed).integers(-30, 30, (n, KNOTS)).astype(np.float64), axis=1)
    codes, values = tuple(f"LAB//{k}" for k in range(n)), ValuesConfig(carry=False)
    words = Vocabulary((), codes, np.ones(n, bool), table, np.zeros(n), np.ones(n), values)
    value, last = np.array([number / 2 for _, number in asked]), KNOTS - 1
    scale = np.array([row % n for row, _ in asked], dtype=np.int32)
    expected = []
    for row, number in zip(scale.tolist(), value.tolist(), strict=True):
        own = table[row].tolist()
        equal = [k for k, knot in enumerate(own) if knot == number]
        below = sum(knot < number for knot in own)
        if equal:
            expected.append((equal[0] + equal[-1]) / 2 / last)
        elif below in (0, KNOTS):
            expected.append(below // KNOTS)
        else:
            low, high = own[below - 1], own[below]
            expected.append((below - 1 + (number - low) / (high - low)) / last)
    assert words.ranks(words.n_unknown + scale, value).tolist() == expected
