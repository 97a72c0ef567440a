"""Reads an explorer's page as its script does, written from the format's description in `explorer/page.py`."""

import base64
import json
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ehrsequencing.explorer.codes import Explorer


@dataclass(frozen=True)
class ReadPage:
    """What a page holds: its facts, and its arrays."""

    about: dict[str, Any]
    patients: dict[str, NDArray[Any]]
    removals: dict[str, NDArray[Any]]

    def risk(self, row: int, cause: int, point: int) -> float:
        shape = (-1, len(self.about["causes"]), len(self.about["curve_days"]))
        return float((self.patients["risk"].reshape(shape)[row, cause, point] / 65535) ** 2)

    def removed(self, edit: int, number: int) -> NDArray[np.float64]:
        """(causes, horizons) of an edit at the patient's prediction time of this number."""
        causes, horizons = self.about["causes"], self.about["horizons_days"]
        owner = int(np.searchsorted(self.removals["edit_offsets"], edit, side="right")) - 1
        row = int(self.patients["row_offsets"][owner]) + number
        at = self.removals["answer_offsets"][edit] + number - self.removals["first_row"][edit]
        change = self.removals["change"].reshape(-1, len(causes), len(horizons))[at].astype(np.int64)
        points = [self.about["curve_days"].index(day) for day in horizons]
        shape = (-1, len(causes), len(self.about["curve_days"]))
        before = self.patients["risk"].reshape(shape)[row][:, points].astype(np.int64)
        return np.asarray((((before + change) % 65536) / 65535) ** 2)


def codes_of(explorer: Explorer, patient: int) -> dict[int, list[str]]:
    """The codes of the data behind each shown code that a patient has in a visit."""
    patients, own = explorer.gathered.patients, dict[int, list[str]]()
    items = slice(*patients.item_offsets[patients.visit_offsets[patient : patient + 2]])
    for code in np.unique(patients.item_code[items]).tolist():
        own.setdefault(int(explorer.shown.of_code[code]), []).append(explorer.gathered.codes[code])
    return own


def read_page(text: str) -> ReadPage:
    """The facts and arrays of a page."""
    about = json.loads(script(text, "about"))
    found = {name: unpacked(script(text, name), listed) for name, listed in about["blocks"].items()}
    return ReadPage(about, found.get("patients", {}), found.get("removals", {}))


def script(text: str, name: str) -> str:
    """The content of a data block."""
    found = re.search(rf'<script type="application/[a-z-]+" id="{name}">(.*?)</script>', text, flags=re.DOTALL)
    assert found
    return found[1]


def unpacked(text: str, listed: dict[str, Any]) -> dict[str, NDArray[Any]]:
    whole, at, found = zlib.decompress(base64.b64decode(text), -15), 0, {}
    assert len(whole) == listed["size"]
    for name, kind, length, coding in listed["arrays"]:
        width = int(kind[1])
        planes = np.frombuffer(whole[at : at + length * width], dtype=np.uint8).reshape(width, length)
        array = np.ascontiguousarray(planes.T).view(f"<{kind}").ravel()
        at += length * width
        found[name] = plain(array, coding)
    return found


def plain(array: NDArray[Any], coding: str) -> NDArray[Any]:
    """Without zigzag; differences added up in the width that they are stored in."""
    if not coding:
        return array
    wide = array.astype(np.int64)
    change = np.where(wide % 2, -(wide + 1) // 2, wide // 2)
    running: Callable[[NDArray[Any]], NDArray[Any]] = np.cumsum if coding == "differences" else (lambda x: x)
    return np.asarray(running(change)).astype(array.dtype)
