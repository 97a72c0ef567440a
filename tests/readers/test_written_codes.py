"""Codes on their way into MEDS files: numbers while rows are spilled, then a dictionary that reads as plain text."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st
from meds import schema as meds

from ehrsequencing.readers.meds_writer import CodeNumbers, _write_data

CODES = st.lists(st.one_of(st.none(), st.sampled_from("abcdef"), st.text(max_size=3)), max_size=12)


@given(st.lists(st.tuples(CODES, CODES.map(lambda words: [*words, *words])), max_size=6))
def test_each_code_has_one_number_in_the_order_of_meeting(batches: list[tuple[Any, Any]]) -> None:
    """Whether a batch comes as text, or as a dictionary that repeats codes, or has null among them."""
    numbers, met, given_codes, found = CodeNumbers(), list[str](), [], []
    for plain, words in batches:
        places = pa.array(range(len(words)), pa.int32())
        repeated = pa.DictionaryArray.from_arrays(places, pa.array(words, pa.string()))
        for codes, column in ((plain, pa.array(plain, pa.string())), (words, repeated)):
            found += numbers.of(pa.chunked_array([column])).to_pylist()
            given_codes += codes
    for code in given_codes:
        if code is not None and code not in met:
            met.append(code)
    assert numbers.texts.to_pylist() == met
    assert found == [None if code is None else met.index(code) for code in given_codes]


def test_a_file_holds_codes_as_text(tmp_path: Path) -> None:
    codes = pa.DictionaryArray.from_arrays(pa.array([1, 0, 1], pa.int32()), ["HIV", "SEX//F"])
    rows = pa.table({
        "subject_id": pa.array([1, 1, 2]), "time": pa.array([None, 5, None], pa.timestamp("us")), "code": codes,
        "numeric_value": pa.array([None, 1.5, None], pa.float32()),
        "text_value": pa.array([None, "x", None], pa.large_string()), "encounter_id": pa.array([None, 7, None]),
    })  # fmt: skip
    _write_data(tmp_path / "data" / "0.parquet", rows)
    read = pq.read_table(tmp_path / "data" / "0.parquet")
    assert read.equals(meds.DataSchema.align(rows.set_column(2, "code", codes.cast(pa.string()))))
    assert read.schema.field("code").type == pa.string()
    assert read.schema.field("text_value").type == pa.large_string()
    meds.DataSchema.validate(read)
