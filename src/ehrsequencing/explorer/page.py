"""What an explorer shows → one page of HTML, which needs no network and whose policy allows none.

The page's own script and style are allowed by their hashes. All text of the data enters the page as JSON in which `<`
is escaped, or as packed numbers; the script puts it into the page as text, never as markup.
"""

import base64
import math
import re
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from ehrsequencing.core.arrays import Floats32, Ints
from ehrsequencing.core.disclosure import SMALLEST_COUNT
from ehrsequencing.core.outputs import EXPLORER, output_file
from ehrsequencing.core.version import __version__
from ehrsequencing.evaluation.context import question
from ehrsequencing.explorer.codes import Explorer, Removals
from ehrsequencing.explorer.patients import NOT_KNOWN, OLDEST, landmark_rows
from ehrsequencing.prediction.run import saved_audit
from ehrsequencing.reporting.wording import duration, environment, hashed, json_text

TOP = 65_535
_NAMES = {"uint8": "u1", "uint16": "u2", "uint32": "u4", "float32": "f4"}


def quantised(risk: NDArray[np.floating]) -> NDArray[np.uint16]:
    """Risks as 16-bit integers q, with risk ≈ (q / 65,535)²: off by at most 1.6e-5, and by less where risks are small.

    >>> import numpy as np
    >>> numbers = quantised(np.array([0.0, 0.0003, 1.0]))
    >>> ((numbers / 65_535) ** 2).round(5).tolist()
    [0.0, 0.0003, 1.0]
    """
    return np.round(np.sqrt(np.clip(np.nan_to_num(risk), 0.0, 1.0)) * TOP).astype(np.uint16)


def zigzag(change: NDArray[np.integer], bits: int) -> NDArray[np.unsignedinteger]:
    """Signed differences, modulo 2^bits, as unsigned numbers that are small where the differences are.

    >>> import numpy as np
    >>> zigzag(np.array([0, -1, 1, -2]), 16).tolist()
    [0, 1, 2, 3]
    """
    wrapped = change.astype({16: np.int16, 32: np.int32}[bits])
    return ((wrapped << 1) ^ (wrapped >> (bits - 1))).view({16: np.uint16, 32: np.uint32}[bits])


def differences(values: NDArray[np.integer], bits: int = 32) -> NDArray[np.unsignedinteger]:
    """Each number less the one before it, zigzag: of numbers that rise slowly, or are near each other."""
    whole = values.astype(np.int64)
    return zigzag(whole - np.r_[0, whole[:-1]], bits)


def hundredths(days: NDArray[np.floating]) -> Ints:
    """Days as whole hundredths; NaN as −1."""
    return np.where(np.isnan(days), -1, np.round(days * 100)).astype(np.int64)


def rounded_floats(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Numbers to a precision of 1 in 8,192, so that their last bits compress to nothing; NaN stays.

    >>> import numpy as np
    >>> rounded_floats(np.array([1.5, 98.6], dtype=np.float32)).tolist()
    [1.5, 98.6015625]
    """
    bits = np.where(np.isnan(values), np.float32(np.nan), values).astype(np.float32).view(np.uint32)
    return ((bits + 0x200) & np.uint32(0xFFFFFC00)).view(np.float32)


def pack(
    arrays: Mapping[str, NDArray[np.generic]], coded: Mapping[str, str]
) -> tuple[dict[str, object], str]:
    """Arrays as one text, and what a reader must know to take them apart.

    Args:
        arrays: Arrays of `uint8`, `uint16`, `uint32` or `float32`.
        coded: Name → `differences` or `zigzag`, where that is what an array holds.

    Returns:
        `{"size": bytes before compression, "arrays": [[name, type, length, coding]]}`, and base64.
    """
    parts, listed = list[bytes](), list[tuple[str, str, int, str]]()
    for name, array in arrays.items():
        flat = np.ascontiguousarray(array).ravel()
        width = flat.dtype.itemsize
        # all first bytes of the numbers, then all second ones …: text that compresses well
        parts.append(flat.view(np.uint8).reshape(-1, width).T.tobytes())
        listed.append((name, _NAMES[flat.dtype.name], len(flat), coded.get(name, "")))
    whole = b"".join(parts)
    squeeze = zlib.compressobj(9, zlib.DEFLATED, -15)
    text = base64.b64encode(squeeze.compress(whole) + squeeze.flush()).decode()
    return {"size": len(whole), "arrays": listed}, text


# the parts of one ES module, in this order
MODULE = (
    "data.js",
    "marks.js",
    "cohort.js",
    "patient.js",
    "whatif.js",
    "main.js",
)
_NOT_TEXT = re.compile(
    "[\x00-\x1f\x7f-\x9f\ud800-\udfff\u200e\u200f\u202a-\u202e\u2066-\u2069\ufffe\uffff]"
)


def write_page(explorer: Explorer, out: Path, *, overwrite: bool = False) -> None:
    """Write the page of an explorer; `overwrite` as of `refuse_existing`.

    Raises:
        EhrseqError: Something else is there, or the file cannot be written.
    """
    with output_file(out, EXPLORER, overwrite=overwrite, owner_only=True) as temporary:
        temporary.write_bytes(page(explorer).encode())


def page(explorer: Explorer) -> str:
    """The page of an explorer as a string of HTML, which asks nobody."""
    blocks = {"patients": pack(*_patient_arrays(explorer))}
    if explorer.removals is not None and explorer.removed is not None:
        blocks["removals"] = pack(*_removal_arrays(explorer, explorer.removals, explorer.removed))
    run, task, shown, settings = explorer.run, explorer.run.task, explorer.shown, explorer.settings
    codes = [
        {
            "name": _clean(name),
            "words": _clean(words),
            "unit": _clean(unit),
            "lane": _clean(lane),
            "known": bool(known),
        }
        for name, words, unit, lane, known in zip(
            shown.names, shown.words, shown.units, shown.lanes, shown.is_known, strict=True
        )
    ]
    about = {  # what the page knows beside its arrays
        "title": _clean(task.heading),
        "question": _clean(question(task)),
        "causes": [_clean(cause) for cause in task.causes],
        "horizons_days": [float(day) for day in task.horizons],
        "main": task.horizons.index(run.main_horizon),
        "start_days": float(task.blanking),
        "curve_days": [float(day) for day in explorer.curve_days],
        "moments": [
            "at the latest prediction",
            "at the first prediction",
            *(f"{duration(days)} after the index" for days in _landmarks(explorer) if days),
        ],
        "patients": len(explorer.gathered.patients),
        "codes": codes,
        "together": shown.together.tolist(),
        "sexes": [_clean(level) for level in np.unique(explorer.gathered.patients.sex).tolist()],
        "smallest": SMALLEST_COUNT,
        "fewest": settings.fewest,
        "oldest": OLDEST,
        "not_known": NOT_KNOWN,
        "edits": None if explorer.removals is None else "latest" if explorer.latest_only else "all",
        "blocks": {name: listed for name, (listed, _) in blocks.items()},
    }
    templates = environment("explorer")
    folder = Path(__file__).parent / "templates"
    script = "\n".join((folder / name).read_text(encoding="utf-8") for name in MODULE)
    style = templates.get_template("explorer.css.jinja").render()
    return templates.get_template("explorer.html.jinja").render(
        about=about,
        about_json=json_text(about),
        audit=saved_audit(explorer.run.folder),
        blocks=[(name, Markup(text)) for name, (_, text) in blocks.items()],
        in_all=explorer.gathered.in_all,
        policy=f"default-src 'none'; script-src {hashed(script)}; style-src {hashed(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'",
        script=Markup(script),
        style=Markup(style),
        version=__version__,
    )


def _clean(text: str) -> str:
    """Text without control characters, half surrogates and marks that turn the direction of writing."""
    return _NOT_TEXT.sub("�", text)


def _landmarks(explorer: Explorer) -> list[float]:
    """Landmarks at which predictions may be compared with what happened; the index itself is the first."""
    return [0.0, *(days for days in explorer.run.task.landmarks if days)]


def _patient_arrays(explorer: Explorer) -> tuple[dict[str, NDArray[np.generic]], dict[str, str]]:
    patients, shown = explorer.gathered.patients, explorer.shown
    age = np.minimum(patients.age_years, OLDEST)
    # numbers of rare codes stand for different things, and are left out
    rare = shown.of_code[patients.item_code] >= shown.n_common
    running = {
        "row_offsets": patients.row_offsets,
        "visit_offsets": patients.visit_offsets,
        "item_offsets": patients.item_offsets,
        "row_day": hundredths(patients.row_day),
        "row_visits": patients.row_visits,
        "end_day": hundredths(patients.end_day),
        "visit_day": hundredths(patients.visit_day),
    }
    for number, landmark in enumerate(_landmarks(explorer), start=1):
        running[f"moment{number}"] = landmark_rows(patients, landmark) + 1
    arrays: dict[str, NDArray[np.generic]] = {
        name: differences(values) for name, values in running.items()
    }
    coded = dict.fromkeys([*arrays, "risk"], "differences")
    _, sex = np.unique(patients.sex, return_inverse=True)
    arrays |= {
        "risk": differences(quantised(patients.risk).ravel(), 16),
        "age": np.where(
            np.isnan(age), TOP, np.round(np.nan_to_num(np.maximum(age, -100)) * 10)
        ).astype(np.uint16),
        "sex": sex.astype(np.uint8),
        "cause": patients.cause,
        "is_query": patients.is_query.astype(np.uint8),
        "item_code": shown.of_code[patients.item_code].astype(
            np.uint32 if len(shown.names) > TOP else np.uint16
        ),
        "item_value": rounded_floats(np.where(rare, np.float32(math.nan), patients.item_value)),
    }
    return arrays, coded


def _removal_arrays(
    explorer: Explorer, removals: Removals, removed: Floats32
) -> tuple[dict[str, NDArray[np.generic]], dict[str, str]]:
    patients = explorer.gathered.patients
    owner = np.repeat(np.arange(len(patients)), np.diff(removals.edit_offsets))
    length = np.diff(removals.answer_offsets)
    edit = np.repeat(np.arange(len(removals)), length)
    number = np.arange(removals.answers) - removals.answer_offsets[edit] + removals.first_row[edit]
    rows = patients.row_offsets[owner[edit]] + number
    points = np.searchsorted(explorer.curve_days, explorer.run.task.horizons)
    before = quantised(patients.risk)[rows][:, :, points].astype(np.int64)
    running = {
        "edit_offsets": removals.edit_offsets,
        "target": removals.target,
        "first_row": removals.first_row,
        "answer_offsets": removals.answer_offsets,
    }
    arrays: dict[str, NDArray[np.generic]] = {
        name: differences(values) for name, values in running.items()
    }
    coded = dict.fromkeys(arrays, "differences")
    arrays["change"] = zigzag((quantised(removed).astype(np.int64) - before).ravel(), 16)
    return arrays, coded | {"change": "zigzag"}
