"""Arrays → text inside a page: integers as small differences, bytes by their place, deflated, in base64.

A browser undoes it with `atob` and `DecompressionStream`, without a library (`templates/data.js`).
"""

import base64
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ehrsequencing.core.arrays import Ints

TOP = 65_535
_NAMES = {"uint8": "u1", "uint16": "u2", "uint32": "u4", "float32": "f4"}


def quantised(risk: NDArray[np.floating[Any]]) -> NDArray[np.uint16]:
    """Risks as 16-bit integers q, with risk ≈ (q / 65,535)²: off by at most 1.6e-5, and by less where risks are small.

    >>> import numpy as np
    >>> found = quantised(np.array([0.0, 0.0003, 1.0]))
    >>> ((found / 65_535) ** 2).round(5).tolist()
    [0.0, 0.0003, 1.0]
    """
    whole: NDArray[np.uint16] = np.round(
        np.sqrt(np.clip(np.nan_to_num(risk), 0.0, 1.0)) * TOP
    ).astype(np.uint16)
    return whole


def zigzag(change: NDArray[np.integer[Any]], bits: int) -> NDArray[Any]:
    """Signed differences, modulo 2^bits, as unsigned numbers that are small where the differences are.

    >>> import numpy as np
    >>> zigzag(np.array([0, -1, 1, -2]), 16).tolist()
    [0, 1, 2, 3]
    """
    wrapped = change.astype({16: np.int16, 32: np.int32}[bits])
    return ((wrapped << 1) ^ (wrapped >> (bits - 1))).view({16: np.uint16, 32: np.uint32}[bits])


def differences(values: NDArray[np.integer[Any]], bits: int = 32) -> NDArray[Any]:
    """Each number less the one before it, zigzag: of numbers that rise slowly, or are near each other."""
    whole = values.astype(np.int64)
    return zigzag(whole - np.r_[0, whole[:-1]], bits)


def hundredths(days: NDArray[np.floating[Any]]) -> Ints:
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
    arrays: Mapping[str, NDArray[Any]], coded: Mapping[str, str]
) -> tuple[dict[str, Any], str]:
    """Arrays as one text, and what a reader must know to take them apart.

    Args:
        arrays: Arrays of `uint8`, `uint16`, `uint32` or `float32`.
        coded: Name → `differences` or `zigzag`, where that is what an array holds.

    Returns:
        `{"size": bytes before compression, "arrays": [[name, type, length, coding]]}`, and base64.
    """
    parts, listed = list[bytes](), list[list[Any]]()
    for name, array in arrays.items():
        flat = np.ascontiguousarray(array).ravel()
        width = flat.dtype.itemsize
        # all first bytes, then all second ones …
        parts.append(flat.view(np.uint8).reshape(-1, width).T.tobytes())
        listed.append([name, _NAMES[flat.dtype.name], len(flat), coded.get(name, "")])
    whole = b"".join(parts)
    squeeze = zlib.compressobj(9, zlib.DEFLATED, -15)
    text = base64.b64encode(squeeze.compress(whole) + squeeze.flush()).decode()
    return {"size": len(whole), "arrays": listed}, text
