"""JSON and YAML at the door: what holds half a surrogate pair is no text."""

import json
from pathlib import Path

import pytest

from ehrsequencing.config import load_task
from ehrsequencing.core.errors import EhrseqError, looks_like_header, quoted
from ehrsequencing.core.files import read_json
from ehrsequencing.core.text import BadText, HalfSurrogate, parse_json, parse_yaml

HALVES = ["\ud800", "\udfff", "x\ud83d", "\ude00\ud83d", "\\\ud800"]


@pytest.mark.parametrize("half", HALVES, ids=range(len(HALVES)))
def test_half_a_surrogate_pair_is_no_text(half: str) -> None:
    for value in (half, {half: 1}, {"a": [[{"b": ["c", half]}]]}):
        written = json.dumps(value)
        for data in (written, written.encode(), written.encode("utf-16")):
            with pytest.raises(HalfSurrogate, match="half a surrogate pair"):
                parse_json(data)
        if "\\" not in half:
            with pytest.raises(HalfSurrogate):
                parse_yaml(written)


def test_whole_pairs_and_escaped_backslashes_are_text() -> None:
    for text in ("\U0001f600", "\\ud800", "é\n", "\U0001f600\\udc00"):
        assert parse_json(json.dumps(text)) == parse_json(json.dumps(text).encode("utf-16")) == text
    with pytest.raises(BadText, match="is not valid JSON"):
        parse_json(b'"\xed\xa0\x80"')


def test_files_of_settings_and_results_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "task.yaml"
    path.write_text('name: "\\ud800"\nindex: {code: A}\noutcome: {x: B}\n')
    with pytest.raises(EhrseqError, match=r"task.yaml.*surrogate"):
        load_task(path)
    path.write_text('{"a": ["\\ud800"]}')
    with pytest.raises(EhrseqError, match=r"task.yaml.*damaged.*surrogate"):
        read_json(path)


def test_names_are_shown_only_where_no_cell_looks_like_them() -> None:
    for names in (["id", "years", "status"], ["patientId", "Hämoglobin (g/dL)"], ["PATIENT", "x"], ["visit_date", "2"]):
        assert looks_like_header(names)
    rows = ["4711007 1961-03-04 HIV", "Anna HIV F", "id 1961-03-04", "Anna covid 12", "C50.9 04.03.1961 died"]
    assert not any(looks_like_header(row.split()) for row in rows)
    assert quoted("4711007") == quoted("1961-03-04") == ""
