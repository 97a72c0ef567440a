"""Files that cannot be listed, followed or read: an error that names them, never people who vanish in silence."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.records.labels import read_index_times
from ehrsequencing.records.meds import find_shards
from helpers.bad_inputs import write_clean

HELD_OUT = "data/held_out"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_clean(tmp_path / "meds")


def link_to_nothing(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    path.symlink_to("nowhere")


@pytest.mark.parametrize("place", [HELD_OUT, "data", "metadata"])
def test_a_folder_that_cannot_be_listed_is_an_error(data: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """Root may list every folder, so the system's refusal is played at the call that lists."""
    scandir, listdir = os.scandir, os.listdir

    def refusing(real: Callable[..., object]) -> Callable[..., object]:
        def call(path: object = ".") -> object:
            if Path(os.fspath(path)) == data / place:  # type: ignore[call-overload]
                raise PermissionError(13, "Permission denied", str(data / place))
            return real(path)

        return call

    monkeypatch.setattr(os, "scandir", refusing(scandir))
    monkeypatch.setattr(os, "listdir", refusing(listdir))
    with pytest.raises(EhrseqError, match=f"{data / place}: cannot be listed: Permission denied"):
        find_shards(data)


def test_index_times_in_a_folder_are_all_read_or_refused(tmp_path: Path) -> None:
    labels = tmp_path / "labels"
    labels.mkdir()
    link_to_nothing(labels / "0.parquet")
    with pytest.raises(EhrseqError, match="is a link to a folder or to nothing"):
        read_index_times(labels)


def test_an_empty_split_folder_and_the_files_of_spark_are_no_loss(data: Path) -> None:
    shutil.rmtree(data / "data/tuning")
    (data / "data/tuning").mkdir()
    (data / HELD_OUT / "_SUCCESS").touch()
    (data / HELD_OUT / ".0.parquet.crc").touch()
    assert len(find_shards(data)) == 2
