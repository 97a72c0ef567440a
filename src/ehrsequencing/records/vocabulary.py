"""Codes and values → token ids, fitted on training subjects only (SCIENCE.md §1).

Token 0 is `[PAD]`, then `[UNK]` and one unknown token per code type, then the codes that enough training subjects have.
A code with numbers also gets a *scale*: its training quantiles, mean and standard deviation. Queries carry summaries of
the past as tokens of their own (`LAST//`, `MEAN//` …), each with a scale.
"""

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from ehrsequencing.config import ValuesConfig
from ehrsequencing.errors import EhrseqError
from ehrsequencing.records.codes import code_type
from ehrsequencing.records.events import OfCodes, hash_u64
from ehrsequencing.records.rollup import Rollup
from ehrsequencing.storage import digest, read_json, write_bytes, write_json

PAD, UNK = "[PAD]", "[UNK]"
SUMMARIES = ("LAST", "FIRST", "MEAN", "MIN", "MAX", "SINCE", "COUNT")
QUANTILES = 128  # knots of a scale, less one
_RANK_SD = float(np.sqrt(12.0))  # a uniform rank times this has standard deviation 1


@dataclass(frozen=True)
class Vocabulary:
    """Tokens and value scales; everything that must be known to encode a record the way training data was.

    Attributes:
        tokens: (V,) names; position is the token id.
        scale: (V,) int32, row in the scale arrays, -1 for tokens without values.
        knots: (n, 129) float64, quantiles of the training values.
        mean: (n,) float64.
        sd: (n,) float64, 1 for constant values.
        settings: How values become tokens.
        rollup: What rare codes become by the ontology.
    """

    tokens: tuple[str, ...]
    scale: NDArray[np.int32]
    knots: NDArray[np.float64]
    mean: NDArray[np.float64]
    sd: NDArray[np.float64]
    settings: ValuesConfig
    rollup: Rollup = field(default_factory=Rollup)

    def __len__(self) -> int:
        return len(self.tokens)

    @cached_property
    def index(self) -> dict[str, int]:
        """Token id of each token name."""
        return {token: position for position, token in enumerate(self.tokens)}

    @cached_property
    def digest(self) -> str:
        """Short hash of tokens, scales and settings."""
        arrays = [hash_u64(a.view(np.uint64)).sum().item() for a in (self.knots.ravel(), self.mean, self.sd)]
        rollup = [] if self.rollup.mode == "off" else [self.rollup.as_json()]
        return digest([self.tokens, self.scale.tolist(), arrays, self.settings.model_dump(), *rollup])

    @cached_property
    def code_types(self) -> NDArray[np.int64]:
        """(V,) number of each token's type: 0 for none, then the prefixes of the codes in order."""
        return np.unique(["", *map(self._type_of, self.tokens)], return_inverse=True)[1][1:].astype(np.int64)

    def _type_of(self, token: str) -> str:
        if token.startswith("["):  # [UNK//LAB] is a laboratory code
            return token.removeprefix("[UNK//").removesuffix("]") if token.startswith("[UNK//") else ""
        base, _, last = token.rpartition("//")
        is_bin = self.settings.mode == "bins" and base in self.index and last.startswith("Q")
        return code_type(base if is_bin else token)

    @property
    def n_unknown(self) -> int:
        """Number of leading tokens that are padding or unknown."""
        return sum(t == PAD or t.startswith("[UNK") for t in self.tokens)

    def is_unknown(self, ids: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Which token ids stand for codes that training did not know."""
        return ids < self.n_unknown

    def ids(self, codes: tuple[str, ...]) -> NDArray[np.int32]:
        """Token id of each code: its own, that of what it is rolled up to, or its type's unknown token."""
        return self._ids_of(codes)

    @cached_property
    def _ids_of(self) -> OfCodes[NDArray[np.int32]]:
        known: dict[str, int] = {}  # a data set has the same codes in every shard

        def find(code: str) -> int:
            own = -1 if code.startswith("[") else self.index.get(self.rollup.replacement(code) or code, -1)
            return own if own >= 0 else self.index.get(f"[UNK//{code_type(code)}]", self.index[UNK])

        def ids(codes: tuple[str, ...]) -> NDArray[np.int32]:
            known.update((code, find(code)) for code in codes if code not in known)
            return np.fromiter(map(known.__getitem__, codes), dtype=np.int32, count=len(codes))

        return OfCodes(ids)

    def keeps_number(self, codes: tuple[str, ...]) -> NDArray[np.bool_]:
        """(C,) False for codes that are rolled up: their number means nothing on their ancestor's scale."""
        if self.rollup.mode != "on":
            return np.ones(len(codes), dtype=bool)
        return np.fromiter((self.rollup.replacement(c) is None for c in codes), dtype=bool, count=len(codes))

    def extra_ids(self, codes: tuple[str, ...]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Offsets (C+1,) and token ids of the ancestors that come along with each code."""
        extra = [[self.index[token] for token in self.rollup.extra(code)] for code in codes]
        length = np.array([0, *map(len, extra)], dtype=np.int64)
        return np.cumsum(length), np.array([i for ids in extra for i in ids], dtype=np.int32)

    def summary_ids(self, summary: str) -> NDArray[np.int32]:
        """(V,) token id of `SUMMARY//code` for every code token, -1 where there is none."""
        return self.summary_tokens[:, SUMMARIES.index(summary)]

    @cached_property
    def summary_tokens(self) -> NDArray[np.int32]:
        """(V, 7) token ids of the summaries of every code token, in the order of `SUMMARIES`; -1 without them."""
        rows = [[self.index.get(f"{summary}//{token}", -1) for summary in SUMMARIES] for token in self.tokens]
        return np.array(rows, dtype=np.int32).reshape(-1, len(SUMMARIES))

    def encode_values(
        self, ids: NDArray[np.int32], value: NDArray[np.floating[Any]]
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Turn tokens with raw numbers into what the model reads.

        Args:
            ids: (n,) token ids.
            value: (n,) raw numbers, NaN without one.

        Returns:
            Token ids (n,), changed to the joint `CODE//Qk` tokens where `values.mode` is `bins`; and (n, 2) float32
            rank r (scaled to standard deviation 1) and standardised value z (clipped at ±4), NaN without a number.
        """
        out = np.full((len(ids), 2), np.nan, dtype=np.float32)
        rows = np.flatnonzero(~np.isnan(value))
        scale = self.scale.take(ids.take(rows))
        known = np.flatnonzero(scale >= 0)
        if self.settings.mode == "none" or not len(known):
            return ids, out
        if len(known) < len(rows):
            rows, scale = rows.take(known), scale.take(known)
        number = value.take(rows).astype(np.float64)
        rank = self._ranks.of(scale, number)
        if self.settings.mode == "bins":
            ids = ids.copy()
            last = self.settings.bins - 1
            ids[rows] = self._first_bin[ids[rows]] + np.minimum(rank * self.settings.bins, last).astype(np.int32)
            return ids, out
        pair = np.empty((len(rows), 2), dtype=np.float32)
        pair[:, 0] = (rank - 0.5) * _RANK_SD
        pair[:, 1] = np.clip((number - self.mean.take(scale)) / self.sd.take(scale), -4.0, 4.0)
        if len(rows) == len(out):
            return ids, pair
        out[rows] = pair
        return ids, out

    @cached_property
    def _ranks(self) -> "_Ranks":
        return _Ranks(self.knots)

    @cached_property
    def _first_bin(self) -> NDArray[np.int32]:
        return np.fromiter((self.index.get(f"{t}//Q1", -1) for t in self.tokens), np.int32, count=len(self))

    def save(self, folder: Path) -> None:
        """Write `vocabulary.json` and `vocabulary.safetensors`."""
        text = {"values": self.settings.model_dump(), "tokens": self.tokens}
        rollup = {} if self.rollup.mode == "off" else {"rollup": self.rollup.as_json()}
        write_json(folder / "vocabulary.json", {**text, **rollup})
        arrays: dict[str, NDArray[Any]] = {"scale": self.scale, "knots": self.knots, "mean": self.mean, "sd": self.sd}
        write_bytes(folder / "vocabulary.safetensors", save(arrays))

    @classmethod
    def load(cls, folder: Path) -> "Vocabulary":
        """Read what `save` wrote."""
        text = read_json(folder / "vocabulary.json")
        try:
            arrays = load_file(folder / "vocabulary.safetensors")
            return cls(
                tokens=tuple(text["tokens"]), settings=ValuesConfig.model_validate(text["values"]),
                scale=arrays["scale"], knots=arrays["knots"], mean=arrays["mean"], sd=arrays["sd"],
                rollup=Rollup.from_json(text["rollup"]) if "rollup" in text else Rollup(),
            )  # fmt: skip
        except (SafetensorError, OSError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise EhrseqError("is damaged", where=str(folder / "vocabulary"), mend="make the folder again") from error


class _Ranks:
    """Rank in [0, 1] of numbers among the quantiles of their scales.

    Tied values get the middle of their run, others interpolate. All scales are searched at once, by halving: numbers
    need not be sorted by scale, and no step waits for a branch.

    Args:
        knots: (n, k) quantiles of each scale, rising.

    >>> import numpy as np
    >>> ranks = _Ranks(np.array([[0.0, 1.0, 1.0, 1.0, 4.0]]))
    >>> ranks.of(np.zeros(5, np.int32), np.array([-1.0, 0.5, 1.0, 4.0, 9.0]))
    array([0.   , 0.125, 0.5  , 1.   , 1.   ])
    """

    def __init__(self, knots: NDArray[np.float64]) -> None:
        self.per_scale, self.knots = knots.shape[1], knots.ravel()
        opens = np.ones(knots.shape, dtype=bool)
        opens[:, 1:] = knots[:, 1:] != knots[:, :-1]
        first = np.flatnonzero(opens.ravel())
        length = np.diff(first, append=opens.size)
        self.middle = np.repeat(first % self.per_scale + (length - 1) / 2, length)  # of each knot's run of equals

    def of(self, scale: NDArray[np.int32], value: NDArray[np.float64]) -> NDArray[np.float64]:
        """Rank (n,) of each number in its scale."""
        start, last = scale * np.int64(self.per_scale), self.per_scale - 1
        place, left = start.copy(), self.per_scale
        while left:  # how many knots are below the number
            half = (left + 1) // 2
            place += half * (self.knots[half - 1 :].take(place) < value)
            left -= half
        below = place - start
        low, at = np.maximum(below - 1, 0), np.minimum(below, last) + start
        at_low, at_high = self.knots.take(low + start), self.knots.take(at)
        width = at_high - at_low
        between = low + (value - at_low) / np.where(width > 0, width, 1.0)
        return np.asarray(np.clip(np.where(at_high == value, self.middle.take(at), between), 0, last) / last)
