"""Results of `prepare`'s pieces of work as files: arrays and JSON, so that to read one runs no code.

The classes that a file may name are listed here, and are filled without being called. There are two forms:

- `to_bytes` and `from_bytes`: an NPZ, with check sums, for workers that share a folder over days.
- `write_result` and `read_result`: the arrays as they lie in memory, for a process and its own workers.
"""

import io
import json
import math
import mmap
import zipfile
import zlib
from collections import Counter
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from ehrsequencing.config import TaskConfig
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.records.attrition import Tally
from ehrsequencing.records.data_end import DayCounts
from ehrsequencing.records.fixes import FixLog
from ehrsequencing.records.row_store import KeptRows
from ehrsequencing.records.shard_work import EncodedShard, FittedShards
from ehrsequencing.records.timelines import OutcomeEvents, TaskRows, Timelines
from ehrsequencing.records.vocabulary_fit import FitPart

_CLASSES: dict[str, type] = {
    cls.__name__: cls
    for cls in (
        *(FittedShards, KeptRows, DayCounts, FitPart),
        *(EncodedShard, Timelines, TaskRows, Tally, OutcomeEvents, TaskConfig),
    )
}
_CONTAINERS: dict[str, type] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
_MAPPINGS: dict[str, type] = {"dict": dict, "Counter": Counter}
_PLAIN = (type(None), bool, int, float, str)
_JSON = "json"
_LENGTH_BYTES = 8
_TEXTS = "texts"  # a tuple of nothing but strings
_DAMAGE = (
    *(
        ValueError,
        KeyError,
        IndexError,
        TypeError,
        AttributeError,
        OSError,
        EOFError,
        RecursionError,
    ),
    *(zipfile.BadZipFile, zlib.error, NotImplementedError),
)


def to_bytes(result: Any) -> bytes:
    """A result as the content of an NPZ file.

    Raises:
        TypeError: It holds something that is not listed here.
    """
    arrays = list[NDArray[Any]]()
    text = json.dumps(_plain(result, arrays))
    out = io.BytesIO()
    named: dict[str, Any] = {str(number): array for number, array in enumerate(arrays)}
    named[_JSON] = np.frombuffer(text.encode(), dtype=np.uint8)
    # No `allow_pickle`: NumPy 1 would store it as one more array. `_plain` lets no objects through.
    np.savez(out, **named)
    return out.getvalue()


def from_bytes(content: bytes, *, where: str) -> Any:
    """The result again.

    Args:
        content: What `to_bytes` returned.
        where: The file, for the message.

    Raises:
        EhrseqError: The content is damaged, or names what is not listed here.
    """
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as found:
            text = json.loads(found[_JSON].tobytes())
            return _restored(text, [found[str(number)] for number in range(len(found.files) - 1)])
    except _DAMAGE as error:
        raise EhrseqError(
            "is damaged", where=where, fix="remove it; a worker makes it again"
        ) from error


def write_result(result: Any, path: Path) -> None:
    """Write a result for the process that waits for it: the length of the JSON, the JSON, and one array after another.

    Raises:
        TypeError: It holds something that is not listed here.
    """
    arrays = list[NDArray[Any]]()
    plain = _plain(result, arrays)
    text = json.dumps([plain, [(array.dtype.str, array.shape) for array in arrays]]).encode()
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(_LENGTH_BYTES, "little") + text)
        for array in arrays:
            file.write(np.ascontiguousarray(array).data)


def read_result(path: Path, *, mapped: bool = False) -> Any:
    """The result that `write_result` wrote.

    Args:
        path: The file.
        mapped: Whether its arrays stay in the file, read-only, which takes disk until the last one is dropped, even
            if the file was removed. Otherwise each array has memory of its own.
    """
    with open(path, "rb") as file:
        text, kinds = json.loads(file.read(int.from_bytes(file.read(_LENGTH_BYTES), "little")))
        if mapped:
            arrays = _mapped(file, kinds)
        else:
            arrays = [
                np.fromfile(file, kind, math.prod(shape)).reshape(shape) for kind, shape in kinds
            ]
    return _restored(text, arrays)


def _mapped(file: IO[bytes], kinds: list[tuple[str, list[int]]]) -> list[NDArray[Any]]:
    """The arrays from the file's place on, without a copy."""
    arrays, start = list[NDArray[Any]](), file.tell()
    content = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
    for kind, shape in kinds:
        stop = start + np.dtype(kind).itemsize * math.prod(shape)
        arrays.append(content[start:stop].view(kind).reshape(shape))
        start = stop
    return arrays


def _plain(value: Any, arrays: list[NDArray[Any]]) -> Any:
    """JSON with a tag for each thing that JSON does not have."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if isinstance(value, np.ndarray) and value.dtype != object:
        arrays.append(np.asarray(value))  # not a memory map
        return {"array": len(arrays) - 1}
    if isinstance(value, np.generic):
        arrays.append(np.asarray(value))
        return {"number": len(arrays) - 1}
    if isinstance(value, Path):
        return {"path": str(value)}
    if kind is tuple and all(type(one) is str for one in value):  # thousands of codes
        return {_TEXTS: value}
    if kind.__name__ in _CONTAINERS and kind is _CONTAINERS[kind.__name__]:
        return {kind.__name__: [_plain(one, arrays) for one in value]}
    if isinstance(value, FixLog):
        return {"fixes": [_plain(dict(value), arrays), _plain(value.places, arrays)]}
    if kind.__name__ in _MAPPINGS and kind is _MAPPINGS[kind.__name__]:
        return {
            kind.__name__: [
                [_plain(key, arrays), _plain(one, arrays)] for key, one in value.items()
            ]
        }
    if _CLASSES.get(kind.__name__) is not kind:
        raise TypeError(f"{kind.__module__}.{kind.__qualname__} cannot be stored")
    content = (
        value.model_dump(mode="json")
        if isinstance(value, BaseModel)
        else _plain(vars(value), arrays)
    )
    return {"class": kind.__name__, "content": content}


def _restored(value: Any, arrays: list[NDArray[Any]]) -> Any:
    if not isinstance(value, dict):
        return value
    if "class" in value:
        cls: Any = _CLASSES[value["class"]]
        if issubclass(cls, BaseModel):
            return cls.model_validate(value["content"])
        made = object.__new__(cls)
        made.__dict__.update(_restored(value["content"], arrays))
        return made
    ((kind, content),) = value.items()
    if kind in ("array", "number"):
        return arrays[content] if kind == "array" else arrays[content][()]
    if kind == "path":
        return Path(content)
    if kind == "fixes":
        return FixLog(*(_restored(one, arrays) for one in content))
    if kind == _TEXTS:
        return tuple(content)
    if kind in _CONTAINERS:
        return _CONTAINERS[kind](_restored(one, arrays) for one in content)
    return _MAPPINGS[kind]({_restored(key, arrays): _restored(one, arrays) for key, one in content})
