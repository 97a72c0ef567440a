"""`from_table` with tables as people have them: what is an event, when it was, and what never changes."""

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import ehrsequencing as eh
from ehrsequencing.core.errors import EhrseqError
from helpers.flat_frames import flat_table

ONE = {"subject": "id", "time": "time", "event": "status"}  # one row a person
LONG = {"subject": "id", "time": "stop", "event": "status", "start": "start"}
DEATH = {"status": {2: "death"}}


def one_row(people: int = 120) -> pd.DataFrame:
    """One row a person, coded as in R's `lung`: 1 is censored, 2 is dead; days, age in years, sex 1 or 2."""
    who = np.arange(people)
    return pd.DataFrame(
        {"id": who, "time": 5 + 3 * who, "status": 1 + (who % 4 > 0), "age": 40 + who % 40, "sex": 1 + who % 2}
    )


def long_rows(people: int = 60) -> pd.DataFrame:
    """Three rows a person, as in R's `pbcseq` with start and stop: 1 transplant, 2 death; not in order."""
    rows = []
    for who in range(people):
        for row in range(3):
            event = 0 if row < 2 else who % 3
            rows.append((who, 100 * row, 100 * row + 100, event, "fm"[who % 2], who % 5 == 0, who + row / 10, 50 + row))
    columns = ["id", "start", "stop", "status", "sex", "ascites", "bili", "age"]
    return pd.DataFrame(rows, columns=columns).sample(frac=1, random_state=0)


def converted(frame: Any, out: Path, **how: Any) -> tuple[pd.DataFrame, Any]:
    """The rows of MEDS that a table becomes, and its task."""
    data, task = eh.from_table(frame, out=out / "flat", overwrite=True, **how)
    return eh.read_meds(data), task


def people_with(rows: pd.DataFrame, code: str) -> set[int]:
    return set(rows.subject_id[rows.code == code])


@pytest.fixture
def no_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder in which nothing was made by the end of a test of refusals."""
    yield tmp_path
    assert not list(tmp_path.iterdir())


# ---- the column of events ----


@pytest.mark.parametrize(
    "values",
    [
        [0, 1],
        [0.0, 1.0],
        [None, 1.0],
        ["0", "1"],
        ["0.0", "1.0"],
        [False, True],
        ["FALSE", "True"],
        ["no", "yes"],
        ["alive", "Dead"],
        ["censored", "event"],
        ["Right Censored", "death"],
        ["living", "deceased"],
        ["", "died"],
        [None, "1"],
    ],
)
@pytest.mark.parametrize("dtype", [None, "category"])
def test_usual_marks_of_events_are_read(values: list[Any], dtype: Any, tmp_path: Path) -> None:
    frame = one_row()
    frame["status"] = pd.Series([values[who % 4 > 0] for who in frame.id], dtype=dtype)
    rows, task = converted(frame, tmp_path, **ONE)
    assert len(task.causes) == 1
    assert people_with(rows, f"EVENT//{task.causes[0]}") == set(frame.id[frame.id % 4 > 0])


def test_both_readings_of_1_and_2_are_shown_and_none_is_taken(no_folder: Path) -> None:
    for more in ({}, {"interest": 2}):
        with pytest.raises(EhrseqError, match="which of them are events") as caught:
            converted(one_row(), no_folder, **ONE, **more)
        assert "2 (90 rows), 1 (30 rows)" in caught.value.what
        assert "event={'status': {2: 'death'}} if 1 is censored" in caught.value.fix
        assert "event={'status': {2: 'death', 1: 'transplant'}}" in caught.value.fix


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ([0, 1, 2], r"event=\{'status': \{1: 'status', 2: 'status_2'\}\}.*or interest=1"),
        (["relapse", "death"], r"'relapse' \(60 rows\), 'death' \(60 rows\).*that is left out is censored\)"),
        (["censored", "relapse"], r"event=\{'status': \{'relapse': 'relapse'\}\}"),
        (["alive", "dead", "died"], "which of them are events"),
        ([0, 1, "lost"], "'lost'"),
        ([*[0] * 20, 3], r"3 \(<11 rows\)"),
        ([0, 0], "nobody has the event"),
        ([None, None], "nobody has the event"),
    ],
)
def test_other_values_ask(values: list[Any], says: str, no_folder: Path) -> None:
    status = pd.Series([values[who % len(values)] for who in range(120)], dtype=object)
    with pytest.raises(EhrseqError, match=says):
        converted(one_row().assign(status=status), no_folder, **ONE)


def test_a_column_of_many_values_is_not_shown(no_folder: Path) -> None:
    notes = [f"fell on day {who}" for who in range(120)]
    for frame in (one_row().assign(status=notes), one_row().rename(columns={"time": "status", "status": "time"})):
        with pytest.raises(EhrseqError, match=r"has 1\d\d different values") as caught:
            converted(frame, no_folder, **ONE)
        assert "fell" not in str(caught.value)
        assert "(2" not in str(caught.value)


@pytest.mark.parametrize("key", [2, 2.0, "2", "2.0", np.int8(2)])
@pytest.mark.parametrize("dtype", ["int64", "float32", "Int8", "Float64", "category", "string", "object"])
def test_a_named_value_is_found_whatever_its_type(key: Any, dtype: str, tmp_path: Path) -> None:
    frame = one_row().astype({"status": dtype})
    rows, task = converted(frame, tmp_path, **(ONE | {"event": {"status": {key: "death"}}}))
    assert task.causes == ("death",)
    assert people_with(rows, "EVENT//death") == set(frame.id[frame.id % 4 > 0])


def test_named_events_in_the_order_of_interest(tmp_path: Path) -> None:
    frame = long_rows()
    death = set(frame.id[frame.status == 2])
    for event, interest, causes in [
        ({"status": {2: "death", 1: "transplant"}}, None, ("death", "transplant")),
        ({2: "death", 1: "transplant"}, None, ("death", "transplant")),
        ({"status": {1: "transplant", 2: "death", 0: "censored"}}, 2, ("death", "transplant")),
        ({"status": {1: "transplant", 2: "death"}}, "death", ("death", "transplant")),
        ("status", 2, ("status_2", "status")),
        ("status", "status_2", ("status_2", "status")),
        ({2: "death"}, None, ("death",)),
        ({2: "any", 1: "any"}, None, ("any",)),
    ]:
        rows, task = converted(frame, tmp_path, **(LONG | {"event": event, "interest": interest}))
        assert task.causes == causes, event
        assert death <= people_with(rows, f"EVENT//{causes[0]}")
        assert len(death) == 20
    words = frame.assign(status=frame.status.map({0: "Alive", 1: "Transplant", 2: "Dead"}))
    assert converted(words, tmp_path, **LONG, interest="dead")[1].causes == ("dead", "transplant")


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"event": {"status": {3: "death"}}}, "and event= names another one"),
        ({"event": {"status": {}}}, "nobody has the event"),
        ({"event": {"status": {2: "censored"}}}, "nobody has the event"),
        ({"event": DEATH, "interest": "relapse"}, "nobody has the event"),
        ({"event": {"state": {2: "death"}}}, r"no column 'state' \(name one of status"),
        ({"event": "statsu"}, r"no column 'statsu' \(name one of status"),
        ({"static": "sexe"}, r"no column 'sexe' \(name one of sex"),
        ({"event": DEATH, "age": "age", "static": ["age"]}, r"static=\['age'\] is not .* what another argument names"),
        ({"event": DEATH, "unit": "m"}, r"unit='m'.*write one of s, min, h, d, w, y, month .*minutes or months"),
        ({"event": DEATH, "unit": "mo"}, "unit='mo'"),
        ({"event": DEATH, "age": "time"}, r"81 rows of 'time' do not say when .*0 to 120 years"),
        ({"event": DEATH, "birth": "age"}, "120 rows of 'age' do not say when"),
        ({"event": DEATH, "start": "late"}, r"30 rows have 'time' before 'late'"),
        ({"event": DEATH, "time": "before"}, r"12 rows have 'before' before 'day 0'"),
        ({"event": DEATH, "time": "words"}, "no row has a subject and a time in 'words'"),
        ({"event": DEATH, "start": "dates"}, "one holds numbers and the other dates"),
        ({"event": DEATH, "time": "dates"}, "needs a beginning .name the column of the beginning with start="),
        ({"event": DEATH, "time": "dates", "start": "dates", "unit": "d"}, "none for dates"),
    ],
)
def test_an_error_says_how_to_go_on(how: dict[str, Any], says: str, no_folder: Path) -> None:
    frame = one_row().assign(words="soon", dates=pd.Timestamp("2020-03-01"))
    frame = frame.assign(
        late=frame.time.where(frame.id % 4 > 0, frame.time + 1), before=frame.time.where(frame.id % 10 > 0, -1)
    )
    with pytest.raises(EhrseqError, match=says):
        converted(frame, no_folder, **(ONE | how))


def test_what_is_doubtful_warns(tmp_path: Path) -> None:
    frame = one_row().assign(status=lambda one: one.status - 1)
    missing = frame.assign(status=frame.status.where(frame.id % 10 > 0).astype("Int64"))
    for table, how, says in [
        (frame.assign(status=1), {}, "nobody is censored"),
        (one_row(), {"event": {2: "death", 1: "transplant"}}, "nobody is censored"),
        (frame.assign(time=frame.time / 365.25), {}, "'time' is below 10 days: write unit='y'"),
        (missing, {}, "12 rows have nothing in 'status' and count as rows without an event"),
        (frame.assign(time=frame.time.where(frame.id % 10 > 0)), {}, "12 rows without a subject or a time"),
    ]:
        with pytest.warns(UserWarning, match=says) as caught:
            converted(table, tmp_path, **(ONE | how))
        assert len(caught) == 1
        assert caught[0].filename == __file__


# ---- times ----


@pytest.mark.parametrize(
    ("unit", "days"), [(None, 1), ("d", 1), ("h", 1 / 24), ("w", 7), ("month", 30.4375), ("y", 365.25)]
)
def test_times_have_units(unit: str | None, days: float, tmp_path: Path) -> None:
    frame = one_row(40)
    rows, _ = converted(frame, tmp_path, **(ONE | {"event": DEATH}), unit=unit)
    first, last = (rows[rows.code == code].set_index("subject_id").time for code in ("ENROLLMENT", "END_OF_FOLLOWUP"))
    waited = (last - first) / pd.Timedelta(days=1)
    np.testing.assert_allclose(waited[frame.id], frame.time * days, atol=2 / 86400)


def test_a_unit_that_is_named_does_not_warn(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        converted(one_row().assign(time=2), tmp_path, **(ONE | {"event": DEATH}), unit="d")


def test_a_row_is_known_at_its_start_and_its_event_is_at_its_end(tmp_path: Path) -> None:
    frame = long_rows()
    rows, task = converted(frame, tmp_path, **LONG, interest=2)
    day = (rows.time - pd.Timestamp("2000-01-01")) // pd.Timedelta(days=1)  # whole days are dates
    bili = rows.code == "bili"
    pairs = sorted(zip(rows.subject_id[bili], day[bili], rows.numeric_value[bili].round(1), strict=True))
    assert pairs == sorted(zip(frame.id, frame.start, frame.bili, strict=True))
    assert set(day[rows.code == "EVENT//status_2"]) == {300}
    assert task.horizons == (300.0,)


def test_dates_equal_days(tmp_path: Path) -> None:
    frame = long_rows()
    days, _ = converted(frame, tmp_path, **LONG, interest=2)
    for kind in ("datetime64[ns]", "datetime64[s]", "string", "datetime64[us, Europe/Berlin]"):
        dates = {
            name: pd.Timestamp("2000-01-01") + pd.to_timedelta(frame[name], unit="D") for name in ("start", "stop")
        }
        if kind.endswith("]"):
            dates = {
                name: column.dt.tz_localize("Europe/Berlin" if "/" in kind else None) for name, column in dates.items()
            }
        rows, _ = converted(frame.assign(**dates).astype(dict.fromkeys(dates, kind)), tmp_path, **LONG, interest=2)
        pd.testing.assert_frame_equal(rows, days)


def test_rows_that_overlap_warn_with_the_number_of_people(tmp_path: Path) -> None:
    frame = long_rows()
    last = frame.groupby("id").stop.transform("max")
    for table, people in ((frame.assign(stop=last), 60), (frame.assign(stop=frame.stop.where(frame.id > 6, last)), 7)):
        with pytest.warns(UserWarning, match=f"rows of {people} people overlap"):
            converted(table, tmp_path, **LONG, interest=2)


def test_an_event_of_a_row_without_length_counts(tmp_path: Path) -> None:
    frame = long_rows()
    frame.loc[frame.start == 200, "stop"] = 200
    rows, task = converted(frame, tmp_path, **LONG, interest=2)
    assert task.horizons == (200.0,)
    assert len(people_with(rows, "EVENT//status_2")) == 20


# ---- static codes and births ----


def static_codes(rows: pd.DataFrame) -> dict[str, int]:
    return rows.code[rows.time.isna()].value_counts().to_dict()


def test_texts_and_booleans_that_never_change_are_static(tmp_path: Path) -> None:
    frame = long_rows()
    given = {"sex//f": 30, "sex//m": 30, "ascites//true": 12, "ascites//false": 48}
    for kinds in ({}, {"sex": "category", "ascites": "boolean"}, {"sex": "string"}):
        assert static_codes(converted(frame.astype(kinds), tmp_path, **LONG, interest=2)[0]) == given
    import polars

    assert static_codes(converted(polars.from_pandas(frame), tmp_path, **LONG, interest=2)[0]) == given


def test_what_changes_or_is_filled_in_later_is_not_static(tmp_path: Path) -> None:
    frame = long_rows()
    later = frame.assign(
        ascites=frame.ascites & (frame.start > 0),  # changes
        sex=frame.sex.where(frame.start > 0),  # not known at first
        arm=frame.sex.where(frame.start == 0),  # written down once
        centre=frame.id % 2,  # a number
        entry=pd.Timestamp("2020-03-01"),  # a date
    )
    rows, _ = converted(later, tmp_path, **LONG, interest=2)
    assert static_codes(rows) == {"arm//f": 30, "arm//m": 30}
    assert rows.numeric_value[rows.code == "centre"].notna().sum() == 180
    named, _ = converted(later.astype({"centre": float}), tmp_path, **LONG, interest=2, static=["sex", "centre"])
    assert static_codes(named) == {
        f"{code}": 30 for code in ("arm//f", "arm//m", "sex//f", "sex//m", "centre//0", "centre//1")
    }
    with pytest.raises(EhrseqError, match=r"static=\['bili'\] is not the same in all rows"):
        converted(later, tmp_path, **LONG, interest=2, static="bili")


def test_with_one_row_a_person_only_named_columns_are_static(tmp_path: Path) -> None:
    frame = one_row().assign(cell=["small", "large"] * 60)
    rows, _ = converted(frame, tmp_path, **(ONE | {"event": DEATH}), static="sex")
    assert static_codes(rows) == {"sex//1": 60, "sex//2": 60}
    assert rows.time[rows.code.str.startswith("cell//")].notna().all()


def test_births_from_ages_and_from_dates(tmp_path: Path) -> None:
    frame = long_rows()
    rows, _ = converted(frame, tmp_path, **LONG, interest=2, age="age")
    births = rows[rows.code == "MEDS_BIRTH"]
    assert len(births) == 60
    assert set(births.time.astype(str)) == {"1949-12-31"}  # the age of the first row: 50 years of 365.25 days
    assert "age" not in set(rows.code)
    origin = pd.Timestamp("2020-06-01")
    dates = {name: origin + pd.to_timedelta(frame[name], unit="D") for name in ("start", "stop")}
    for born in ("1980-02-29", pd.Timestamp("1980-02-29")):
        rows, _ = converted(frame.assign(**dates, born=born), tmp_path, **LONG, interest=2, birth="born")
        assert set(rows.time[rows.code == "MEDS_BIRTH"].astype(str)) == {"1980-02-29"}
    unknown = frame.assign(age=frame.age.where(frame.id > 9))
    rows, _ = converted(unknown, tmp_path, **LONG, interest=2, age="age")
    assert len(people_with(rows, "MEDS_BIRTH")) == 50


def test_a_table_without_other_columns(tmp_path: Path) -> None:
    frame = flat_table()[["id", "day", "status"]]
    rows, _ = converted(frame, tmp_path, subject="id", time="day", event="status")
    assert set(rows.code) == {"ENROLLMENT", "END_OF_FOLLOWUP", "EVENT//status"}
