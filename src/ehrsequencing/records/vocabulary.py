"""Codes and values → token ids, fitted on training subjects only (SCIENCE.md §1).

Token 0 is `[PAD]`, then `[UNK]` and one unknown token per code type, then the codes that enough training subjects have.
A code with numbers also gets a *scale*: its training quantiles, mean and standard deviation. Queries carry summaries of
the past as tokens of their own (`LAST//`, `MEAN//` …), each with a scale.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from ehrsequencing.config import ValuesConfig, VocabularyConfig
from ehrsequencing.errors import EhrseqError
from ehrsequencing.records.codes import code_type
from ehrsequencing.records.meds import DAY_US, STATIC, Events, hash_u64
from ehrsequencing.records.rollup import Carriers, Rollup, fit_rollup
from ehrsequencing.storage import digest, read_json, write_json

PAD, UNK = "[PAD]", "[UNK]"
SUMMARIES = ("LAST", "FIRST", "MEAN", "MIN", "MAX", "SINCE", "COUNT")
_QUANTILES = 128  # knots of a scale, less one
_SAMPLE = 2048  # values kept per code while fitting
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
        get, unknown, rolled = self.index.get, self.index[UNK], self.rollup.replacement
        found = (get(rolled(c) or c, -1) if not c.startswith("[") else -1 for c in codes)
        return np.fromiter(
            (i if i >= 0 else get(f"[UNK//{code_type(c)}]", unknown) for i, c in zip(found, codes, strict=True)),
            dtype=np.int32,
            count=len(codes),
        )

    def keeps_number(self, codes: tuple[str, ...]) -> NDArray[np.bool_]:
        """(C,) False for codes that are rolled up: their number means nothing on their ancestor's scale."""
        return np.fromiter((self.rollup.replacement(c) is None for c in codes), dtype=bool, count=len(codes))

    def extra_ids(self, codes: tuple[str, ...]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Offsets (C+1,) and token ids of the ancestors that come along with each code."""
        extra = [[self.index[token] for token in self.rollup.extra(code)] for code in codes]
        length = np.array([0, *map(len, extra)], dtype=np.int64)
        return np.cumsum(length), np.array([i for ids in extra for i in ids], dtype=np.int32)

    def summary_ids(self, summary: str) -> NDArray[np.int32]:
        """(V,) token id of `SUMMARY//code` for every code token, -1 where there is none."""
        return np.fromiter((self.index.get(f"{summary}//{t}", -1) for t in self.tokens), np.int32, count=len(self))

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
        scale = self.scale[ids]
        rows = np.flatnonzero((scale >= 0) & ~np.isnan(value))
        if self.settings.mode == "none" or not len(rows):
            return ids, out
        order = rows[np.argsort(scale[rows], kind="stable")]
        bounds = np.flatnonzero(np.diff(scale[order])) + 1
        rank = np.empty(len(order))
        for part, where in zip(np.split(order, bounds), np.split(np.arange(len(order)), bounds), strict=True):
            rank[where] = _mid_rank(self.knots[scale[part[0]]], value[part].astype(np.float64))
        if self.settings.mode == "bins":
            ids = ids.copy()
            ids[order] = self._first_bin[ids[order]] + np.minimum(
                rank * self.settings.bins, self.settings.bins - 1
            ).astype(np.int32)
            return ids, out
        out[order, 0] = (rank - 0.5) * _RANK_SD
        standard = (value[order].astype(np.float64) - self.mean[scale[order]]) / self.sd[scale[order]]
        out[order, 1] = np.clip(standard, -4.0, 4.0)
        return ids, out

    @cached_property
    def _first_bin(self) -> NDArray[np.int32]:
        return np.fromiter((self.index.get(f"{t}//Q1", -1) for t in self.tokens), np.int32, count=len(self))

    def save(self, folder: Path) -> None:
        """Write `vocabulary.json` and `vocabulary.safetensors`."""
        text = {"values": self.settings.model_dump(), "tokens": self.tokens}
        rollup = {} if self.rollup.mode == "off" else {"rollup": self.rollup.as_json()}
        write_json(folder / "vocabulary.json", {**text, **rollup})
        arrays: dict[str, NDArray[Any]] = {"scale": self.scale, "knots": self.knots, "mean": self.mean, "sd": self.sd}
        save_file(arrays, folder / "vocabulary.safetensors")

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


def _mid_rank(knots: NDArray[np.float64], value: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rank in [0, 1] among the quantiles; tied values get the middle of their run, others interpolate.

    >>> import numpy as np
    >>> _mid_rank(np.array([0.0, 1.0, 1.0, 1.0, 4.0]), np.array([-1.0, 0.5, 1.0, 4.0, 9.0]))
    array([0.   , 0.125, 0.5  , 1.   , 1.   ])
    """
    left, right = np.searchsorted(knots, value, side="left"), np.searchsorted(knots, value, side="right")
    last = len(knots) - 1
    low, high = np.clip(left - 1, 0, last), np.clip(left, 0, last)
    width = knots[high] - knots[low]
    between = low + (value - knots[low]) / np.where(width > 0, width, 1.0)
    tied = (left + right - 1) / 2
    return np.clip(np.where(right > left, tied, between), 0, last) / last


@dataclass
class _Sample:
    """A bounded sample of values per key: those with the smallest hash, whatever the order in which rows come."""

    key: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    hash: NDArray[np.uint64] = field(default_factory=lambda: np.zeros(0, np.uint64))
    value: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))

    def add(self, key: NDArray[np.int64], hashed: NDArray[np.uint64], value: NDArray[np.float64]) -> None:
        key, hashed = np.r_[self.key, key], np.r_[self.hash, hashed]
        value = np.r_[self.value, value]
        order = np.lexsort((value, hashed, key))
        sorted_key = key[order]
        rank = np.arange(len(order)) - np.searchsorted(sorted_key, sorted_key, side="left")
        keep = order[rank < _SAMPLE]
        self.key, self.hash, self.value = key[keep], hashed[keep], value[keep]

    def values(self, key: int) -> NDArray[np.float64]:
        start, stop = np.searchsorted(self.key, [key, key + 1])
        return np.sort(self.value[start:stop])


class VocabularyFit:
    """Collects, shard by shard, what the vocabulary is fitted on. Memory grows with codes, not with subjects.

    Args:
        settings: Which codes get a token.
        values: What values become.
        excluded: Codes that make no token (birth, death, censoring, ignored).
        parents: Parents of each code, for `vocabulary.rollup`.

    Raises:
        EhrseqError: A roll-up is asked for, and there are no parents.
    """

    def __init__(
        self,
        settings: VocabularyConfig,
        values: ValuesConfig,
        *,
        excluded: Callable[[str], bool],
        parents: Mapping[str, list[str]] | None = None,
    ) -> None:
        self.settings, self.value_settings, self.excluded = settings, values, excluded
        self.parents = parents or {}
        if settings.rollup != "off" and not any(self.parents.values()):
            mend = "write parent_codes in metadata/codes.parquet, or set vocabulary.rollup=off"
            raise EhrseqError("the data set names no parents of codes", where="vocabulary.rollup", mend=mend)
        self._carriers = Carriers(settings.min_subjects) if settings.rollup != "off" else None
        self.number: dict[str, int] = {}  # every code of the data set → a number
        self.subjects = np.zeros(0, np.int64)  # training subjects per code
        self._values, self._gaps, self._counts = _Sample(), _Sample(), _Sample()

    def update(self, events: Events, subject: NDArray[np.int64], is_training: NDArray[np.bool_]) -> None:
        """Add a shard.

        Args:
            events: The shard's events.
            subject: (n,) subject row of each event.
            is_training: (n,) whether the event's subject is in the training split.
        """
        numbers = np.array([self.number.setdefault(c, len(self.number)) for c in events.codes], dtype=np.int64)
        self.subjects = np.r_[self.subjects, np.zeros(len(self.number) - len(self.subjects), np.int64)]
        rows = np.flatnonzero(is_training)
        code = numbers[events.code[rows]] if len(numbers) else np.zeros(0, np.int64)
        pairs = np.unique(np.stack([code, subject[rows]]), axis=1)
        np.add.at(self.subjects, pairs[0], 1)
        if self._carriers is not None:
            ids = np.zeros(int(subject.max(initial=-1)) + 1, dtype=np.int64)
            ids[subject] = events.subject_id
            self._carriers.add(pairs[0], ids[pairs[1]])
        if self.value_settings.mode == "none":
            return
        valued = ~np.isnan(events.value[rows])
        rows, code = rows[valued], code[valued]
        value = events.value[rows].astype(np.float64)
        identity = hash_u64(events.subject_id[rows].view(np.uint64)) ^ events.time_us[rows].view(np.uint64)
        hashed = hash_u64(identity ^ value.view(np.uint64))
        self._values.add(code, hashed, value)
        if self.value_settings.carry:
            timed = events.time_us[rows] != STATIC
            self._update_summaries(code[timed], subject[rows[timed]], events.time_us[rows[timed]], hashed[timed])

    def _update_summaries(
        self, code: NDArray[np.int64], subject: NDArray[np.int64], time: NDArray[np.int64], hashed: NDArray[np.uint64]
    ) -> None:
        """Scales of SINCE (gaps between a subject's values of one code) and COUNT (their number)."""
        order = np.lexsort((time, subject, code))
        code, subject, time, hashed = code[order], subject[order], time[order], hashed[order]
        same = (code[1:] == code[:-1]) & (subject[1:] == subject[:-1])
        self._gaps.add(code[1:][same], hashed[1:][same], np.diff(time)[same] / DAY_US)
        first = np.flatnonzero(np.r_[True, ~same]) if len(code) else np.zeros(0, np.int64)
        counts = np.diff(np.r_[first, len(code)]).astype(np.float64)
        self._counts.add(code[first], hashed[first], counts)

    def common_codes(self) -> list[str]:
        """Codes that enough training subjects have to be named in messages."""
        return [c for c, n in self.number.items() if self.subjects[n] >= self.settings.min_subjects]

    def finish(self) -> Vocabulary:
        """Fit: choose tokens in the order of their names, and a scale for every code with enough numbers."""
        rollup = self._fit_rollup()
        frequent = {c for c in self.common_codes() if not self.excluded(c)}
        codes = sorted(frequent.union(*rollup.to.values()))
        kinds = sorted({code_type(c) for c in self.number if not self.excluded(c)} - {""})
        tokens = [PAD, UNK, *(f"[UNK//{kind}]" for kind in kinds), *codes]
        scales: list[NDArray[np.float64]] = []
        rows: dict[str, int] = {}

        def add(token: str, row: int) -> None:
            if self.value_settings.mode == "bins":
                joint = [f"{token}//Q{k + 1}" for k in range(self.value_settings.bins)]
                tokens.extend(joint)
                rows.update(dict.fromkeys(joint, -1))
            if token not in rows:
                rows[token] = row

        every_gap, every_count = np.sort(self._gaps.value), np.sort(self._counts.value)
        for code in codes:
            sample = self._values.values(self.number.get(code, -1))  # an ancestor need not be in the data
            if len(sample) < self.settings.min_subjects:
                continue
            scales.append(sample)
            add(code, len(scales) - 1)
            if not self.value_settings.carry:
                continue
            own = len(scales) - 1
            for summary, other in (("SINCE", self._gaps), ("COUNT", self._counts)):
                sample = other.values(self.number[code])
                pooled = every_gap if summary == "SINCE" else every_count
                enough = sample if len(sample) >= self.settings.min_subjects else pooled
                scales.append(enough if len(enough) else np.zeros(1))
            for summary in SUMMARIES:
                row = own + {"SINCE": 1, "COUNT": 2}.get(summary, 0)
                tokens.append(f"{summary}//{code}")
                add(tokens[-1], row)
        return replace(_build(tokens, rows, scales, self.value_settings), rollup=rollup)

    def _fit_rollup(self) -> Rollup:
        if self._carriers is None or self.settings.rollup == "off":
            return Rollup()
        carriers = {c: self._carriers.of(n) for c, n in self.number.items() if not self.excluded(c)}
        return fit_rollup(
            self.settings.rollup, carriers, parents=self.parents, enough=self.settings.min_subjects,
            excluded=self.excluded,
        )  # fmt: skip


def _build(
    tokens: list[str], rows: dict[str, int], scales: list[NDArray[np.float64]], settings: ValuesConfig
) -> Vocabulary:
    if len(set(tokens)) < len(tokens):
        mend = "rename the codes of the data that begin with LAST//, COUNT// … or end with //Q1 …"
        raise EhrseqError("a code has the name of a token that the vocabulary makes itself", mend=mend)
    probabilities = np.linspace(0, 1, _QUANTILES + 1)
    knots = [np.quantile(s, probabilities) for s in scales]
    sd = np.array([s.std() for s in scales])
    return Vocabulary(
        tokens=tuple(tokens),
        scale=np.array([rows.get(t, -1) for t in tokens], dtype=np.int32),
        knots=np.array(knots).reshape(-1, _QUANTILES + 1),
        mean=np.array([s.mean() for s in scales]),
        sd=np.where(sd > 0, sd, 1.0),
        settings=settings,
    )
