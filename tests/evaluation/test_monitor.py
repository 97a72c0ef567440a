"""Nights of a hospital: who was at risk, against a plain loop; what is frozen; which keys and records are refused."""

import itertools
import multiprocessing
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, strategies as st

import ehrsequencing as eh
from ehrsequencing.evaluation.monitor import Watch
from ehrsequencing.prediction.journal import Journal
from ehrsequencing.prediction.prediction_file import Risks
from ehrsequencing.records.events import DAY_US
from ehrsequencing.results.observed import redact_night
from helpers.command_line import ehrseq, refused
from helpers.meds import Row, write_meds
from helpers.settings import TINY

TASK = """
name: death
index: {code: DISCHARGE, which: every}
outcome: {death: MEDS_DEATH}
competing: {transfer: TRANSFER}
censoring: {code: LEFT}
blanking: 2d
horizons: [30d, 60d]
"""
START = 19_000  # day of the first row since 1970
NIGHTS = (400, 407, 415, 428, 460, 500, 540)
PEOPLE = 160


def at(day: float) -> int:
    return round((START + day) * DAY_US)


def hospital() -> list[Row]:
    """Discharges, and after them a death, a transfer, or that somebody left."""
    rng, rows = np.random.default_rng(0), list[Row]()
    for person in range(1, PEOPLE + 1):
        day = rng.uniform(0, 500)
        rows += [Row(person, None, "SEX//F" if person % 2 else "SEX//M")]
        for _ in range(int(rng.integers(1, 4))):
            rows += [Row(person, at(day - 0.3), "LAB", float(rng.normal(10, 2))), Row(person, at(day), "DISCHARGE")]
            stay = day
            day += rng.exponential(30)
        end = stay + rng.exponential(60)
        code = rng.choice(["MEDS_DEATH", "TRANSFER", "LEFT", ""], p=[0.5, 0.15, 0.15, 0.2])
        rows += [Row(person, at(end), str(code))] if code else []
    return rows


ROWS = hospital()


def until(day: float, folder: Path, rows: list[Row] = ROWS) -> Path:
    known = [row for row in rows if row.time is None or row.time <= at(day)]
    timed = {row.subject for row in known if row.time is not None}
    write_meds(folder, [row for row in known if row.subject in timed])
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    here = tmp_path_factory.mktemp("hospital")
    (here / "task.yaml").write_text(TASK)
    for words in (
        ("prepare", until(400, here / "past"), "--task", here / "task.yaml", "--out", here / "prepared"),
        ("train", here / "prepared", "--out", here / "run", *TINY),
    ):
        done = ehrseq(*words)
        assert done.exit_code == 0, done.output
    return here / "run"


def predicted(run: Path, data: Path, journal: Path, *more: object) -> Any:
    out = journal.parent / "list.parquet"
    done = ehrseq(
        "predict", run, data, "--at", "all", "--out", out, "--overwrite", "--journal", journal, "--force", *more
    )
    assert done.exit_code == 0, done.output
    return done


@pytest.fixture(scope="module")
def kept(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The journal of all nights."""
    here = tmp_path_factory.mktemp("nights")
    for night in NIGHTS:
        predicted(run, until(night, here / f"{night}"), here / "journal")
    return here / "journal"


def watched(run: Path, journal: Path, data: Path, tmp_path: Path, **more: Any) -> Watch:
    """Of a copy of the journal."""
    mine = tmp_path / "journal"
    if not mine.exists():
        shutil.copytree(journal, mine)
        shutil.copy(journal.with_name("journal.key"), tmp_path / "journal.key")
    return eh.monitor(run, data, mine, progress=False, **more)


def slow(run: Path, journal: Path, rows: list[Row], closed: int) -> tuple[Any, Any]:
    """(days, causes) observed and expected, person by person and day by day, from the files alone."""
    edges = list(eh.load(run).predictor.edges_days)
    nights = [row for path in sorted(journal.glob("2*.parquet")) for row in pq.read_table(path).to_pylist()]
    names = dict(zip(range(1, PEOPLE + 1), Journal(journal).persons(np.arange(1, PEOPLE + 1)).tolist(), strict=True))
    first = min(row["known_time"] for row in nights)
    day0 = int(np.datetime64(first, "D").astype(int))
    observed, expected = np.zeros((2, closed - day0, 2))

    def days(moment: Any) -> float:
        return float(np.datetime64(moment, "us").astype(np.int64)) / DAY_US

    for person in range(1, PEOPLE + 1):
        of_code: dict[str, list[float]] = {}
        for row in rows:
            if row.subject == person and row.time is not None:
                of_code.setdefault(row.code, []).append(row.time / DAY_US)
        death, transfer = (min(of_code.get(code, [1e9])) for code in ("MEDS_DEATH", "TRANSFER"))
        event, cause = (death, 0) if death <= transfer else (transfer, 1)
        stays = [stay for stay in sorted(of_code["DISCHARGE"]) if stay < event]
        own = sorted(
            (days(one["known_time"]), days(one["prediction_time"]), one["hazard"])
            for one in nights
            if one["person"] == names[person]
        )
        for k, (known, moment, hazard) in enumerate(own):
            before = [stay for stay in stays if stay <= moment + 1e-9]
            if not before:
                continue
            left = min([one for one in of_code.get("LEFT", []) if one >= before[-1]], default=1e9)
            end = min(event, left, closed)
            stop = min(end, own[k + 1][0] if k + 1 < len(own) else 1e9)
            if end == event and stop == end and known < end and 2 < end - moment <= edges[-1]:
                observed[int(end) - day0, cause] += 1
            bounds = [0.0, *edges]
            for day in range(int(known), min(int(stop) + 1, closed)):
                for e in (0, 1):
                    for b in range(len(edges)):
                        low, high = max(bounds[b], 2.0) + moment, bounds[b + 1] + moment
                        span = max(0.0, min(stop, day + 1, high) - max(known, day, low)) if low < high else 0.0
                        expected[day - day0, e] += hazard[e * (len(edges) + 1) + b] * span
    return observed, expected


def test_people_count_once_under_their_newest_prediction_as_in_a_plain_loop(
    run: Path, kept: Path, tmp_path: Path
) -> None:
    data = until(545, tmp_path / "now")
    found = watched(run, kept, data, tmp_path, by=["SEX//F"])
    last = max(row.time or 0 for row in ROWS if (row.time or 0) <= at(545))
    closed = (last - 7 * DAY_US) // DAY_US
    observed, expected = slow(run, kept, ROWS, closed)
    assert found.streams == ["everybody, death", "everybody, transfer", "SEX//F, death", "SEX//F, transfer"]
    assert observed.sum() > 20
    assert np.array_equal(found.observed[:, :2], observed)
    assert found.expected[:, :2] == pytest.approx(expected, rel=1e-5, abs=1e-9)
    men = [Row(person, at(0), "DISCHARGE") for person in range(2, PEOPLE + 1, 2)]  # nothing happens to them
    women, _ = slow(run, kept, [*men, *(row for row in ROWS if row.subject % 2)], closed)
    assert np.array_equal(found.observed[:, 2:], women)


def test_a_closed_day_stays_as_it_is_and_what_is_reported_later_is_counted_apart(
    run: Path, kept: Path, tmp_path: Path
) -> None:
    deaths = [row for row in ROWS if row.code == "MEDS_DEATH" and at(430) < (row.time or 0) < at(480)]
    late = deaths[::2]
    early = watched(run, kept, until(545, tmp_path / "now", [r for r in ROWS if r not in late]), tmp_path)
    again = watched(run, kept, until(545, tmp_path / "then"), tmp_path)
    assert np.array_equal(early.observed, again.observed)
    assert np.array_equal(early.expected, again.expected)
    assert early.later == 0
    assert 0 < again.later <= len(late)
    new = watched(run, kept, tmp_path / "then", tmp_path, lag=8.0)  # another lag is another process
    assert new.number == 2
    assert new.threshold == 40
    assert new.observed.sum() > early.observed.sum()


def test_predictions_are_journalled_once_without_ids_and_for_their_owner(run: Path, kept: Path, tmp_path: Path) -> None:
    tables = [pq.read_table(path) for path in sorted(kept.glob("*.parquet"))]
    assert len(tables) == len(NIGHTS)
    rows = [(row["person"], row["prediction_time"]) for one in tables for row in one.to_pylist()]
    assert len(rows) == len({*rows}) > 150
    listed = pq.read_table(kept.parent / "list.parquet", columns=["subject_id", "prediction_time"])
    assert len({*zip(*listed.to_pydict().values(), strict=True)}) <= len(rows)
    assert {one for one in tables[0].schema.names} == {
        "person", "prediction_time", "index_time", "known_time", "hazard",
    }  # fmt: skip
    for path in [*kept.iterdir(), kept.with_name("journal.key")]:
        assert path.stat().st_mode & 0o077 == 0


def test_wrong_keys_records_and_runs_are_refused(run: Path, kept: Path, tmp_path: Path) -> None:
    data = until(545, tmp_path / "now")
    mine, key = tmp_path / "journal", tmp_path / "journal.key"
    shutil.copytree(kept, mine)
    words = ("monitor", run, data, "--journal", mine, "--out", tmp_path / "m.html")
    assert "is not there" in refused(*words)
    key.write_text("0" * 64)
    key.chmod(0o644)
    assert "chmod 600" in refused(*words)
    key.chmod(0o600)
    assert "is not the key of this journal" in refused(*words)
    shutil.copy(kept.with_name("journal.key"), key)
    shutil.copy(key, mine / "key")
    assert "lies in the journal" in refused(*words, "--key", mine / "key")
    (mine / "key").unlink()
    shifted = [row._replace(time=None if row.time is None else row.time - 40 * DAY_US) for row in ROWS]
    assert "shifted otherwise" in refused("monitor", run, until(545, tmp_path / "s", shifted), *words[3:])
    others = [row._replace(subject=row.subject + 9_000) for row in ROWS]
    assert "another form" in refused("monitor", run, until(545, tmp_path / "o", others), *words[3:])
    early = until(NIGHTS[1], tmp_path / "early")
    assert "end before the newest night" in refused(
        "predict", run, early, "--journal", mine, "--out", tmp_path / "l.parquet", "--force"
    )
    assert not (tmp_path / "l.parquet").exists()
    for path in mine.glob("*.parquet"):
        path.unlink()
    assert "not compared: the journal has no night yet" in refused(*words)


def test_a_killed_writer_leaves_nothing_and_two_at_once_journal_each_prediction_once(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, out = until(420, tmp_path / "now"), tmp_path / "list.parquet"
    add = Journal._add

    def killed(*given: Any) -> None:
        add(*given)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "_add", killed)
        ehrseq("predict", run, data, "--out", out, "--journal", tmp_path / "journal", "--force")
    assert not out.exists()
    assert not [*(tmp_path / "journal").glob("*")]
    bins = len(eh.load(run).predictor.edges_days) + 1
    hazards = np.full((5, 2, bins), 0.01, np.float32)
    five, none = np.arange(5) + 1, np.zeros((5, 2, 1), np.float32)
    risks = Risks(five, five * DAY_US, none, index_us=five * DAY_US, hazards=hazards)

    def write() -> None:
        writer = Journal(tmp_path / "journal").writer(eh.load(run), 10 * DAY_US)
        with writer as add_to_night:
            add_to_night(risks)

    both = [multiprocessing.get_context("fork").Process(target=write) for _ in range(3)]
    for one in both:
        one.start()
    for one in both:
        one.join()
    assert [one.exitcode for one in both] == [0, 0, 0]
    counts = [pq.ParquetFile(path).metadata.num_rows for path in (tmp_path / "journal").glob("*.parquet")]
    assert sorted(counts) == [0, 0, 5]


@given(st.lists(st.integers(0, 6), min_size=1, max_size=80))
def test_what_leaves_the_host_never_differs_by_few_people_between_two_nights(counts: list[int]) -> None:
    days, shown = np.arange(len(counts)), []
    for night in range(1, len(counts) + 1):
        some = np.array(counts[:night], dtype=float)
        line = redact_night({}, days[:night], some, np.full(night, 1.3), np.log1p(some.cumsum()))
        shown.append(line)
    for before, after in itertools.pairwise(shown):
        if before["observed"] == after["observed"]:
            assert before == after
        else:
            old = before["observed"] if isinstance(before["observed"], int) else 0
            assert after["observed"] - old >= 15


@pytest.mark.parametrize("factor", [1.0, 18.0])
def test_a_laboratory_that_changes_its_unit_is_named_by_the_drift_over_time(
    run: Path, kept: Path, factor: float, tmp_path: Path
) -> None:
    """Sixty more people of a quarter ago, and sixty of the last four weeks, whose numbers are in another unit."""
    rng, more = np.random.default_rng(3), list[Row]()
    for person, day in enumerate(np.r_[rng.uniform(422, 448, 60), rng.uniform(513, 539, 60)].tolist(), start=1000):
        number = float(rng.normal(10, 2)) * (factor if day > 500 else 1.0)
        more += [Row(person, None, "SEX//F" if person % 2 else "SEX//M"), Row(person, at(day - 0.3), "LAB", number)]
        more += [Row(person, at(day), "DISCHARGE")]
    watch = watched(run, kept, until(540, tmp_path / "newest", [*ROWS, *more]), tmp_path)
    is_named = "compare the units of LAB" in watch.since_last_quarter
    assert is_named == watch.is_broken == (factor > 1)
    assert (watch.action == "look") == watch.is_alarm == (factor > 1)
