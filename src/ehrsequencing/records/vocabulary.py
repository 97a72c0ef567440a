"""Codes and values → token ids, fitted on training subjects only (docs/records.md).

Token 0 is padding, 1 the unknown code. Then follow one unknown token per code type, the codes that enough training
subjects have, and bins and summaries of those with numbers. A token's id decides what it is, never its name, since a
code may be called `[PAD]` or `LAST//LAB//X`. A code with numbers also gets a *scale*: its training quantiles, mean and
standard deviation. Queries carry summaries of the past as tokens of their own (`LAST//`, `MEAN//` …) with scales.
"""

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from ehrsequencing.config import ValuesConfig
from ehrsequencing.core.arrays import Bools, Floats, Floats32, Ints, Ints32, hash_u64
from ehrsequencing.core.elsewhere import Hinted
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import digest, read_json, write_bytes, write_json
from ehrsequencing.core.outputs import of_another_version
from ehrsequencing.records.codes import code_type
from ehrsequencing.records.events import OfCodes
from ehrsequencing.records.scales import KNOTS

PAD, UNK = "[PAD]", "[UNK]"
SUMMARIES = ("LAST", "FIRST", "MEAN", "MIN", "MAX", "SINCE", "COUNT")
_RANK_SD = float(np.sqrt(12.0))  # a uniform rank times this has standard deviation 1


class Made(NamedTuple):
    """A token that is made of a code with numbers."""

    name: str
    code: int  # token id of the code
    summary: int  # position in `SUMMARIES`, -1 for none
    bin: int  # 0, 1 …, -1 for none
    scale: int


# settings that runs of 2.0 do not have, and that change nothing until they are set
SINCE_2_0 = {"missing", "units"}


@dataclass(frozen=True)
class Vocabulary(Hinted):
    """Tokens and value scales: all that is needed to encode a record as the training data was.

    The order of tokens: padding, unknown, the unknown token of each of `kinds`, `codes`; then code by code, for
    those with numbers, its bins (`values.mode=bins`) and its summaries (`values.carry`), each followed by its own bins.
    """

    kinds: tuple[str, ...]  # code types that have an unknown token of their own
    codes: tuple[str, ...]  # codes that have a token
    has_numbers: Bools  # (C,) bool, which codes have a scale; with `values.carry` those of SINCE and COUNT follow it
    knots: Floats  # (n, 129) float64, quantiles of the training values, as `records/scales.py` takes them
    mean: Floats  # (n,) float64
    sd: Floats  # (n,) float64, 1 for constant values
    settings: ValuesConfig  # how values become tokens
    # (C,) share of the training people who have each code, rounded down; empty in runs that did not count it
    share: Floats = field(default_factory=lambda: np.zeros(0))
    n_unknown: int = field(default=2, init=False)  # leading tokens that are padding or unknown

    def __post_init__(self) -> None:
        object.__setattr__(self, "n_unknown", 2 + len(self.kinds))  # the class is frozen
        scales = int(self.has_numbers.sum()) * (3 if self.settings.carry else 1)
        shapes = [(len(self.codes),), (scales, KNOTS), (scales,), (scales,)]
        if [a.shape for a in (self.has_numbers, self.knots, self.mean, self.sd)] != shapes:
            raise ValueError("the arrays of a vocabulary do not fit its codes")

    def __repr__(self) -> str:
        numbers = int(self.has_numbers.sum())
        return (
            f"Vocabulary({len(self):,} tokens, {len(self.codes):,} codes, {numbers:,} with numbers)"
        )

    def __len__(self) -> int:
        return self.n_unknown + len(self.codes) + len(self.made)

    @cached_property
    def made(self) -> list[Made]:
        """The tokens after the codes, in their order."""
        bins = self.settings.bins if self.settings.mode == "bins" else 0
        made: list[Made] = []
        per_code = 3 if self.settings.carry else 1
        for number, place in enumerate(np.flatnonzero(self.has_numbers).tolist()):
            code, row = self.n_unknown + place, number * per_code
            for at in range(-1, len(SUMMARIES) if self.settings.carry else 0):
                name = self.codes[place]
                if at >= 0:
                    name = f"{SUMMARIES[at]}//{name}"
                    own = row + {"SINCE": 1, "COUNT": 2}.get(SUMMARIES[at], 0)
                    made.append(Made(name, code, at, -1, own))
                made += [Made(f"{name}//Q{k + 1}", code, at, k, -1) for k in range(bins)]
        return made

    @cached_property
    def tokens(self) -> tuple[str, ...]:
        """(V,) names to show, no two alike: codes keep theirs, another token with a code's name is marked by `*`."""
        taken = set(self.codes)

        def free(name: str) -> str:
            while name in taken:
                name += "*"
            taken.add(name)
            return name

        special = [free(name) for name in (PAD, UNK, *(f"[UNK//{kind}]" for kind in self.kinds))]
        return (*special, *self.codes, *(free(one.name) for one in self.made))

    @cached_property
    def index(self) -> dict[str, int]:
        """Token id of each code."""
        return {code: self.n_unknown + place for place, code in enumerate(self.codes)}

    @cached_property
    def base(self) -> Ints:
        """(V,) token id of the code behind each token that is made of one; its own for all others."""
        own = np.arange(len(self), dtype=np.int64)
        own[self.n_unknown + len(self.codes) :] = [one.code for one in self.made]
        return own

    @cached_property
    def scale(self) -> Ints32:
        """(V,) row in the scale arrays, -1 for tokens without values."""
        out = np.full(len(self), -1, dtype=np.int32)
        numeric = self.n_unknown + np.flatnonzero(self.has_numbers)
        out[numeric] = np.arange(len(numeric)) * (3 if self.settings.carry else 1)
        out[self.n_unknown + len(self.codes) :] = [one.scale for one in self.made]
        return out

    @cached_property
    def value_columns(self) -> Ints:
        """(V,) number of each token among those that carry numbers, -1 for the others."""
        carries = self.scale >= 0
        return np.where(carries, np.cumsum(carries) - 1, -1)

    @cached_property
    def digest(self) -> str:
        """Short hash of tokens, scales and settings."""
        arrays = [
            hash_u64(a.view(np.uint64)).sum().item()
            for a in (self.knots.ravel(), self.mean, self.sd)
        ]
        numeric = np.flatnonzero(self.has_numbers).tolist()
        settings, new = self.settings.model_dump(), ValuesConfig().model_dump(include=SINCE_2_0)
        settings = {k: v for k, v in settings.items() if k not in new or v != new[k]}
        return digest([self.kinds, self.codes, numeric, arrays, settings])

    @cached_property
    def code_types(self) -> Ints:
        """(V,) number of each token's type: 0 for none, then the prefixes of codes and the summaries in order."""
        # each unknown token, as [UNK//LAB], has the type of its codes
        types = [("", False)] * 2 + [(kind, False) for kind in self.kinds]
        types += [(code_type(code), False) for code in self.codes]
        types += [
            (SUMMARIES[o.summary], True) if o.summary >= 0 else types[o.code] for o in self.made
        ]
        number = {kind: place for place, kind in enumerate(sorted({("", False), *types}))}
        return np.array([number[kind] for kind in types], dtype=np.int64)

    @cached_property
    def ids(self) -> OfCodes[Ints32]:
        """Codes (C,) → token id of each: its own, or its type's unknown token."""
        known = dict(self.index)  # grows: a data set has the same codes in every shard
        unknown = {kind: 2 + place for place, kind in enumerate(self.kinds)}

        def find(codes: tuple[str, ...]) -> Ints32:
            for code in codes:
                if code not in known:
                    known[code] = unknown.get(code_type(code), 1)
            return np.fromiter(map(known.__getitem__, codes), dtype=np.int32, count=len(codes))

        return OfCodes(find)

    def forget(self) -> None:
        """Drop what is remembered of codes met so far: a server keeps nothing of a request."""
        vars(self).pop("ids", None)

    @cached_property
    def summary_tokens(self) -> Ints32:
        """(V, 7) token ids of the summaries of every code token, in the order of `SUMMARIES`; -1 without them."""
        out = np.full((len(self), len(SUMMARIES)), -1, dtype=np.int32)
        for number, one in enumerate(self.made, start=self.n_unknown + len(self.codes)):
            if one.summary >= 0 and one.bin < 0:
                out[one.code, one.summary] = number
        return out

    def encode_values(self, ids: Ints32, value: NDArray[np.floating]) -> tuple[Ints32, Floats32]:
        """Turn tokens with raw numbers into what the model reads.

        Args:
            ids: (n,) token ids.
            value: (n,) raw numbers, NaN without one.

        Returns:
            Token ids (n,), changed to the joint `CODE//Qk` tokens where `values.mode` is `bins`; and (n, 2) float32
            rank r (scaled to standard deviation 1) and standardised value z (clipped at ±4), NaN without a number.
        """
        out = np.full((len(ids), 2), np.nan, dtype=np.float32)
        every_rank = self.ranks(ids, value)
        rows = np.flatnonzero(~np.isnan(every_rank))
        if self.settings.mode == "none" or not len(rows):
            return ids, out
        rank, scale = every_rank.take(rows), self.scale.take(ids.take(rows))
        number = value.take(rows).astype(np.float64)
        if self.settings.mode == "bins":
            ids = ids.copy()
            last = self.settings.bins - 1
            ids[rows] = self._first_bin[ids[rows]] + np.minimum(
                rank * self.settings.bins, last
            ).astype(np.int32)
            return ids, out
        pair = np.empty((len(rows), 2), dtype=np.float32)
        pair[:, 0] = (rank - 0.5) * _RANK_SD
        pair[:, 1] = np.clip((number - self.mean.take(scale)) / self.sd.take(scale), -4.0, 4.0)
        out[rows] = pair
        return ids, out

    def numbers_at(self, token: int, rank: NDArray[np.floating]) -> Floats:
        """(n,) numbers with these ranks r of `encode_values` among a token's training values; NaN stays NaN."""
        share = np.asarray(rank, dtype=np.float64) / _RANK_SD + 0.5
        knots: Floats = self.knots[self.scale[token]]
        return np.asarray(np.interp(share, np.linspace(0.0, 1.0, KNOTS), knots))

    def ranks(self, ids: Ints32, value: NDArray[np.floating]) -> Floats:
        """(n,) rank, from 0 to 1, of each number among the training numbers of its token; NaN without one.

        Tied quantiles get the middle of their run, other numbers interpolate. One binary search covers all scales and
        numbers at once, so that numbers need not be sorted by scale.
        """
        out, scale = np.full(len(ids), np.nan), self.scale.take(ids)
        rows = np.flatnonzero(~np.isnan(value) & (scale >= 0))
        scale, number = scale.take(rows), value.take(rows).astype(np.float64)
        knots, last = self.knots.ravel(), KNOTS - 1
        start = scale * np.int64(KNOTS)
        place, left = start.copy(), KNOTS
        while left:  # how many knots are below the number
            half = (left + 1) // 2
            place += half * (knots[half - 1 :].take(place) < number)
            left -= half
        below = place - start
        low, at = np.maximum(below - 1, 0), np.minimum(below, last) + start
        at_low, at_high = knots.take(low + start), knots.take(at)
        width = at_high - at_low
        between = low + (number - at_low) / np.where(width > 0, width, 1.0)
        rank = np.where(at_high == number, self._middle.take(at), between)
        out[rows] = np.clip(rank, 0, last) / last
        return out

    @cached_property
    def _middle(self) -> Floats:
        """(n · 129,) the middle of each knot's run of equal knots."""
        opens = np.ones(self.knots.shape, dtype=bool)
        opens[:, 1:] = self.knots[:, 1:] != self.knots[:, :-1]
        first = np.flatnonzero(opens.ravel())
        length = np.diff(first, append=opens.size)
        return np.repeat(first % KNOTS + (length - 1) / 2, length)

    @cached_property
    def _first_bin(self) -> Ints32:
        """(V,) id of the first joint token of each code and summary, -1 without bins."""
        out = np.full(len(self), -1, dtype=np.int32)
        for number, one in enumerate(self.made, start=self.n_unknown + len(self.codes)):
            if one.bin == 0:
                out[one.code if one.summary < 0 else number - 1] = number
        return out

    def save(self, folder: Path) -> None:
        """Write `vocabulary.json` and `vocabulary.safetensors`."""
        text = {"values": self.settings.model_dump(), "kinds": self.kinds, "tokens": self.tokens}
        write_json(folder / "vocabulary.json", text)
        arrays: dict[str, NDArray[np.generic]] = {
            "has_numbers": self.has_numbers,
            "knots": self.knots,
            "mean": self.mean,
            "sd": self.sd,
            "share": self.share,
        }
        write_bytes(folder / "vocabulary.safetensors", save(arrays))

    @classmethod
    def load(cls, folder: Path) -> "Vocabulary":
        """Read what `save` wrote."""
        text = read_json(folder / "vocabulary.json")
        if isinstance(text, dict) and text.get("rollup"):
            raise of_another_version("2.0 with vocabulary.rollup=on", folder / "vocabulary.json")
        try:
            arrays, kinds = load_file(folder / "vocabulary.safetensors"), tuple(text["kinds"])
            first = 2 + len(kinds)
            vocabulary = cls(
                kinds=kinds,
                codes=tuple(text["tokens"][first : first + len(arrays["has_numbers"])]),
                has_numbers=arrays["has_numbers"],
                knots=arrays["knots"],
                mean=arrays["mean"],
                sd=arrays["sd"],
                settings=ValuesConfig.model_validate(text["values"]),
                share=arrays.get("share", np.zeros(0)),
            )
            pad, unknown, *others = text["tokens"]
            is_marked = pad.startswith(PAD) and unknown.startswith(UNK)  # a code may have the name
            if not is_marked or len(others) + 2 != len(vocabulary):
                raise ValueError("the tokens are not those of the codes")
        except (SafetensorError, OSError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise EhrseqError(
                "is damaged", where=str(folder / "vocabulary"), fix="make the folder again"
            ) from error
        return vocabulary
