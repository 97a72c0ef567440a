"""Three files of a hospital, with three keys, three forms of dates and Latin-1: from a draft of a map to a list."""

from pathlib import Path

import pytest

from ehrsequencing.api.records import import_csv
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.readers.draft import draft_map
from helpers.command_line import ehrseq
from helpers.meds import meds_rows

STAYS = """Fallnummer;Patient;Aufnahme;Entlassung;Geschlecht;Geburtsdatum
11;1;02.01.2015 10:00;13.01.2015 12:00;männlich;03.04.1950
12;2;05.02.2015 09:30;07.02.2015 11:00;weiblich;13.12.1961
13;1;14.03.2015 08:00;15.03.2015 16:00;männlich;03.04.1950
"""
LAB = "pid,taken,test,result,unit\n1,2015-01-03 08:15:00,CRP,12.5,mg/L\n2,2015-02-06 07:00:00,CRP,3,mg/L\n"
DEATHS = "PatNr\tTod\n1\t03-May-15\n"


def write(folder: Path, deaths: str = DEATHS) -> Path:
    (folder / "stays.csv").write_bytes(STAYS.encode("latin-1"))
    (folder / "lab.csv").write_text(LAB)
    (folder / "deaths.tsv").write_text(deaths)
    paths = [folder / name for name in ("stays.csv", "lab.csv", "deaths.tsv")]
    (folder / "map.yaml").write_text(draft_map(paths, "map.yaml"))
    return folder


def test_a_draft_reads_what_it_was_made_of(tmp_path: Path) -> None:
    import_csv(write(tmp_path), tmp_path / "meds", map=tmp_path / "map.yaml", progress=False)
    assert "encoding: cp1252" in (tmp_path / "map.yaml").read_text()
    found = sorted((row[0], str(row[1]), row[2]) for row in meds_rows(tmp_path / "meds"))
    assert [row for row in found if row[0] == 1] == [
        (1, "1950-04-03 00:00:00", "MEDS_BIRTH"),
        (1, "2015-01-02 10:00:00", "ADMISSION"),
        (1, "2015-01-03 08:15:00", "CRP//mg/L"),
        (1, "2015-01-13 12:00:00", "DISCHARGE"),
        (1, "2015-03-14 08:00:00", "ADMISSION"),
        (1, "2015-03-15 16:00:00", "DISCHARGE"),
        (1, "2015-05-03 23:59:59", "MEDS_DEATH"),
        (1, "None", "SEX//männlich"),
    ]
    text = (tmp_path / "map.yaml").read_text().replace("    encoding: cp1252\n", "")
    (tmp_path / "map.yaml").write_text(text)
    report = import_csv(tmp_path, tmp_path / "found", map=tmp_path / "map.yaml", progress=False)
    assert any("no UTF-8" in note for note in report.notes)
    assert meds_rows(tmp_path / "found") == meds_rows(tmp_path / "meds")


def test_the_command_writes_the_draft_and_no_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path)
    monkeypatch.chdir(tmp_path)
    result = ehrseq("import", "csv", "--draft", "stays.csv", "lab.csv", "deaths.tsv", "--map", "new.yaml")
    assert result.exit_code == 0
    assert (tmp_path / "new.yaml").read_text().split("files:")[1] == (tmp_path / "map.yaml").read_text().split(
        "files:"
    )[1]
    again = ehrseq("import", "csv", "--draft", "stays.csv", "--map", "new.yaml")
    assert (again.exit_code, "new.yaml: exists" in again.output) == (2, True)


def test_a_draft_dates_each_column_by_the_date_of_its_own_rows(tmp_path: Path) -> None:
    """A registry's export: a row of the record, and rows of a repeated form that have another date."""
    rows = ["record,form,enrolled,weight,measured,pressure", "1,,2019-10-14,81,,", "1,bp,,,2019-11-20,118"]
    rows += ["2,,2019-02-02,75,,", "2,bp,,,2019-03-04,121", "2,bp,,,2019-04-05,119"]
    (tmp_path / "export.csv").write_text("\n".join(rows))
    (tmp_path / "map.yaml").write_text(draft_map([tmp_path / "export.csv"], "map.yaml"))
    import_csv(tmp_path, tmp_path / "meds", map=tmp_path / "map.yaml", progress=False)
    found = {(row[0], str(row[1])[:10], row[2]) for row in meds_rows(tmp_path / "meds")}
    assert {row for row in found if row[2] in ("weight", "pressure")} == {
        (1, "2019-10-14", "weight"),
        (2, "2019-02-02", "weight"),
        (1, "2019-11-20", "pressure"),
        (2, "2019-03-04", "pressure"),
        (2, "2019-04-05", "pressure"),
    }


LOST = {
    "one death": (DEATHS + "2\tunknown\n", "cells of column Tod cannot be read as dates; they look like aaaaaaa"),
    "another form": ("PatNr\tTod\n1\t2015.5.3x\n", "they look like 9999.9.9a"),
}


@pytest.mark.parametrize(("deaths", "said"), LOST.values(), ids=LOST)
def test_a_column_is_never_lost_in_silence(tmp_path: Path, deaths: str, said: str) -> None:
    write(tmp_path)
    (tmp_path / "deaths.tsv").write_text(deaths)
    with pytest.raises(EhrseqError, match=said) as error:
        import_csv(tmp_path, tmp_path / "meds", map=tmp_path / "map.yaml", progress=False)
    assert "unknown" not in str(error.value).partition("(")[0], "no cell is shown"
    if "unknown" in deaths:
        text = (tmp_path / "map.yaml").read_text()
        (tmp_path / "map.yaml").write_text(text.replace("    death: Tod", "    death: Tod\n    missing: [unknown]"))
        import_csv(tmp_path, tmp_path / "meds", map=tmp_path / "map.yaml", progress=False)


def test_dates_are_refused_from_a_tenth_on_and_results_only_if_numeric(tmp_path: Path) -> None:
    dates = ["2015-01-03"] * 17 + ["3. Jan"] * 2
    rows = "".join(f"{k},{date},neg\n" for k, date in enumerate([*dates, "2015-01-09"]))
    (tmp_path / "t.csv").write_text("id,day,x\n" + rows + "99,2015-01-04,5\n")
    columns = {"subject": "id", "time": "day", "events": [{"code": "X", "value": "x"}]}
    import_csv(tmp_path / "t.csv", tmp_path / "few", map=columns, progress=False)
    (tmp_path / "t.csv").write_text("id,day,x\n" + rows + "98,4. Jan,6\n99,2015-01-04,5\n")
    with pytest.raises(EhrseqError, match="3 of 22 cells of column day"):
        import_csv(tmp_path / "t.csv", tmp_path / "many", map=columns, progress=False)
    (tmp_path / "t.csv").write_text("id,day,x\n" + rows + "99,2015-01-04,5\n")
    columns["events"] = [{"code": "X", "value": "x", "numeric": True}]
    with pytest.raises(EhrseqError, match="20 of 21 cells of column x cannot be read as numbers; they look like aaa"):
        import_csv(tmp_path / "t.csv", tmp_path / "text", map=columns, progress=False)


def test_keys_that_are_written_in_another_way_are_said(tmp_path: Path) -> None:
    write(tmp_path, DEATHS.replace("\n1\t", "\nP-1\t"))
    report = import_csv(tmp_path, tmp_path / "meds", map=tmp_path / "map.yaml", progress=False)
    assert any("1 of 1 people of deaths.tsv are in no other file" in text for text in report.cautions)


def test_a_year_of_two_digits_is_not_in_the_future(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("id,born,day\n1,13-Mar-48,03-Feb-15\n")
    columns = {"subject": "id", "birth": "born", "dates": "%d-%b-%y", "events": [{"code": "X", "time": "day"}]}
    import_csv(tmp_path / "t.csv", tmp_path / "meds", map=columns, progress=False)
    times = {row[2]: row[1].year for row in meds_rows(tmp_path / "meds")}
    assert times == {"MEDS_BIRTH": 1948, "X": 2015}


def test_an_outcome_that_is_its_date_is_never_lost(tmp_path: Path) -> None:
    rows = [f"{k},2015-01-{k:02d},{'' if k % 2 else f'2015-02-{k:02d}'}" for k in range(1, 21)]
    (tmp_path / "t.csv").write_text("\n".join(["id,day,relapse", *rows, "21,2015-01-21,spring 2015"]))
    columns = {"subject": "id", "time": "day", "events": [{"code": "VISIT"}, {"code": "RELAPSE", "time": "relapse"}]}
    with pytest.raises(EhrseqError, match="1 of 11 cells of column relapse cannot be read as dates"):
        import_csv(tmp_path / "t.csv", tmp_path / "lost", map=columns, progress=False)
    columns["missing"] = ["spring 2015"]
    import_csv(tmp_path / "t.csv", tmp_path / "meds", map=columns, progress=False)
