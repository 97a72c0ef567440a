"""Arrays in files without a name: values as in memory, nothing left on the disk, memory where the disk is full."""

import gc
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from ehrsequencing.core import arrays
from ehrsequencing.core.arrays import row_blocks, selected


def mapped_files() -> int:
    """How many deleted files of ours this process maps."""
    return sum("ehrseq-" in line or "/#" in line for line in Path("/proc/self/maps").read_text().splitlines())


def test_a_large_array_lies_in_a_file_that_has_no_name_and_goes_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = mapped_files()
    monkeypatch.setattr(arrays, "LARGE_BYTES", 8)
    monkeypatch.setattr(arrays, "BLOCK_ROWS", 7)
    large = arrays.scratch(1000, 2, 3)
    assert mapped_files() == before + 1
    assert list(tmp_path.iterdir()) == []
    assert np.isnan(large).all()
    large[10:20] = 4.0
    view = large[:, 0]
    del large
    gc.collect()
    assert mapped_files() == before + 1
    assert view[15, 0] == 4.0
    del view
    gc.collect()
    assert mapped_files() == before


@pytest.mark.parametrize("fault", ["posix_fallocate", "folder"])
def test_without_room_on_the_disk_it_is_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    def full(*_: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(arrays, "LARGE_BYTES", 8)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path if fault == "posix_fallocate" else tmp_path / "gone"))
    monkeypatch.setattr(os, "posix_fallocate", full if fault == "posix_fallocate" else os.posix_fallocate)
    before = mapped_files()
    array = arrays.scratch(10, 2, 2)
    assert mapped_files() == before
    assert np.isnan(array).all()


@given(st.integers(0, 40), st.integers(1, 9), st.data())
def test_a_selection_is_that_of_numpy(rows: int, at_once: int, data: st.DataObject) -> None:
    values = np.arange(rows * 8.0).reshape(rows, 2, 4)
    some = st.lists(st.integers(0, max(rows - 1, 0)), max_size=20 if rows else 0).map(lambda x: np.array(x, dtype=int))
    chosen = data.draw(st.one_of(st.just(slice(None)), some))
    columns = data.draw(st.one_of(st.just(slice(None)), st.lists(st.integers(0, 3)).map(lambda x: np.array(x, int))))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrays, "BLOCK_ROWS", at_once)
        patch.setattr(arrays, "LARGE_BYTES", 8)
        found = selected(values, chosen, columns)
        assert [x for part in row_blocks(rows) for x in range(rows)[part]] == list(range(rows))
    assert found.shape == values[chosen][:, :, columns].shape
    assert (found == values[chosen][:, :, columns]).all()
