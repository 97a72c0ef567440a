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
from ehrsequencing.records.events import DAY_US, STATIC, Events, group_order, hash_u64, opens_run, pieces
from ehrsequencing.records.rollup import Carriers, Rollup, fit_rollup
from ehrsequencing.records.samples import Sample
from ehrsequencing.storage import digest, read_json, write_json

PAD, UNK = "[PAD]", "[UNK]"
SUMMARIES = ("LAST", "FIRST", "MEAN", "MIN", "MAX", "SINCE", "COUNT")
_QUANTILES = 128  # knots of a scale, less one
_PIECE_ROWS = 1 << 17  # about so many rows are added to a fit at once: they fit the processor's cache
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
        memo = self._ids
        if memo.last[0] is not codes:
            memo.last = codes, np.fromiter(map(memo.__getitem__, codes), dtype=np.int32, count=len(codes))
        return memo.last[1]

    @cached_property
    def _ids(self) -> "_Memo":
        get, unknown, rolled = self.index.get, self.index[UNK], self.rollup.replacement

        def find(code: str) -> int:
            own = get(rolled(code) or code, -1) if not code.startswith("[") else -1
            return own if own >= 0 else get(f"[UNK//{code_type(code)}]", unknown)

        return _Memo(find)

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


class _Memo(dict[str, int]):
    """What a function says of each code, asked once: a data set has the same codes in every shard.

    Attributes:
        last: The codes that were asked about last, and what was answered.
    """

    def __init__(self, find: Callable[[str], int]) -> None:
        super().__init__()
        self._find = find
        self.last: tuple[tuple[str, ...], NDArray[np.int32]] = ((), np.zeros(0, np.int32))

    def __missing__(self, code: str) -> int:
        found = self[code] = self._find(code)
        return found


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


@dataclass(frozen=True)
class FitPart:
    """What a fit has collected, as plain arrays: it goes from one process to another (`VocabularyFit.merge`)."""

    codes: tuple[str, ...]
    subjects: NDArray[np.int64]
    samples: tuple[tuple[NDArray[np.int32], NDArray[np.uint64], NDArray[np.floating[Any]]], ...]
    carriers: tuple[NDArray[np.int64], NDArray[np.int64]] | None


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
        self._last: tuple[tuple[str, ...], NDArray[np.int64]] = ((), np.zeros(0, np.int64))  # codes and their numbers
        self._values, self._gaps, self._counts = Sample(), Sample(), Sample()

    def update(self, events: Events, subject: NDArray[np.int64], is_training: NDArray[np.bool_]) -> None:
        """Add a shard.

        Args:
            events: The shard's events.
            subject: (n,) subject row of each event.
            is_training: (n,) whether the event's subject is in the training split.
        """
        self.numbers(events.codes)  # also where no row is left
        ids = np.zeros(int(subject.max(initial=-1)) + 1, np.int64)
        ids[subject.take(events.starts)] = events.subject_id.take(events.starts)
        hashed = hash_u64(ids.view(np.uint64))
        for piece in pieces(events.starts, len(events), _PIECE_ROWS):
            rows = np.flatnonzero(is_training[piece]) + piece.start
            self._update(events, rows, subject, hashed)

    def _update(
        self, events: Events, rows: NDArray[np.int64], subject: NDArray[np.int64], hashed_id: NDArray[np.uint64]
    ) -> None:
        """Add some rows, of whole subjects."""
        code = self.numbers(events.codes).take(events.code.take(rows))
        order = group_order(code, len(self.number))
        rows, code = rows.take(order), code.take(order)  # by code, subject and time
        first = np.flatnonzero(opens_run(code, subject.take(rows)))
        self.subjects += np.bincount(code[first], minlength=len(self.number))
        if self._carriers is not None:
            self._carriers.add(code[first], events.subject_id[rows[first]])
        if self.value_settings.mode == "none":
            return
        valued = np.flatnonzero(~np.isnan(events.value.take(rows)))
        rows, code = rows.take(valued), code.take(valued)
        time, value, owner = events.time_us.take(rows), events.value.take(rows), subject.take(rows)
        identity = hashed_id.take(owner) ^ time.view(np.uint64)
        hashed = hash_u64(identity ^ value.astype(np.float64).view(np.uint64))
        self._values.add(code, hashed, value)
        if self.value_settings.carry:
            timed = np.flatnonzero(time != STATIC)
            self._update_summaries(code.take(timed), owner.take(timed), time.take(timed), hashed.take(timed))

    def numbers(self, codes: tuple[str, ...]) -> NDArray[np.int64]:
        """The number of each code, a new one for a new code."""
        if self._last[0] is not codes:
            numbers = np.array([self.number.setdefault(c, len(self.number)) for c in codes], dtype=np.int64)
            self.subjects = np.r_[self.subjects, np.zeros(len(self.number) - len(self.subjects), np.int64)]
            self._last = codes, numbers
        return self._last[1]

    def _update_summaries(
        self, code: NDArray[np.int64], subject: NDArray[np.int64], time: NDArray[np.int64], hashed: NDArray[np.uint64]
    ) -> None:
        """Scales of SINCE (gaps between a subject's values of one code) and COUNT (their number)."""
        first = np.flatnonzero(opens_run(code, subject))
        same = np.ones(len(code), dtype=bool)
        same[first] = False
        later = np.flatnonzero(same)
        self._gaps.add(code[later], hashed[later], (time[later] - time[later - 1]) / DAY_US)
        counts = np.diff(first, append=len(code)).astype(np.float64)
        self._counts.add(code[first], hashed[first], counts)

    def part(self) -> FitPart:
        """What was collected so far, for another fit to merge."""
        carriers = None
        if self._carriers is not None:
            who = [sorted(self._carriers.of(number)) for number in range(len(self.number))]
            codes = np.repeat(np.arange(len(who)), [len(ids) for ids in who])
            carriers = codes, np.array([one for ids in who for one in ids], dtype=np.int64)
        samples = tuple(sample.rows() for sample in (self._values, self._gaps, self._counts))
        return FitPart(tuple(self.number), self.subjects, samples, carriers)

    def merge(self, part: FitPart) -> None:
        """Add what another fit has collected from other subjects: the same as having seen their shards."""
        numbers = self.numbers(part.codes)
        self.subjects[numbers] += part.subjects
        for sample, (key, hashed, value) in zip((self._values, self._gaps, self._counts), part.samples, strict=True):
            sample.add(numbers[key], hashed, value)
        if self._carriers is not None and part.carriers is not None:
            code, subject_id = numbers[part.carriers[0]], part.carriers[1]
            order = np.argsort(code, kind="stable")
            self._carriers.add(code[order], subject_id[order])

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

        values, gaps, counts = self._values.by_key(), self._gaps.by_key(), self._counts.by_key()
        every_gap, every_count = gaps.all(), counts.all()
        for code in codes:
            sample = values.of(self.number.get(code, -1))  # an ancestor need not be in the data
            if len(sample) < self.settings.min_subjects:
                continue
            scales.append(sample)
            add(code, len(scales) - 1)
            if not self.value_settings.carry:
                continue
            own = len(scales) - 1
            for summary, other in (("SINCE", gaps), ("COUNT", counts)):
                sample = other.of(self.number[code])
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


def _quantiles(value: NDArray[np.float64]) -> NDArray[np.float64]:
    """`np.quantile` at 0, 1/128 … 1 of sorted numbers, to the last bit, without sorting them again."""
    place = np.linspace(0, 1, _QUANTILES + 1) * (len(value) - 1)
    low = np.floor(place).astype(np.int64)
    at_low, at_high, share = value[low], value[np.minimum(low + 1, len(value) - 1)], place - low
    step = at_high - at_low
    return np.where(share >= 0.5, at_high - step * (1 - share), at_low + step * share)


def _build(
    tokens: list[str], rows: dict[str, int], scales: list[NDArray[np.float64]], settings: ValuesConfig
) -> Vocabulary:
    if len(set(tokens)) < len(tokens):
        mend = "rename the codes of the data that begin with LAST//, COUNT// … or end with //Q1 …"
        raise EhrseqError("a code has the name of a token that the vocabulary makes itself", mend=mend)
    distinct = {id(s): s for s in scales}  # many codes share the pooled scales
    found = {key: (_quantiles(s), s.mean(), s.std()) for key, s in distinct.items()}
    facts = [found[id(s)] for s in scales]
    sd = np.array([own for _, _, own in facts])
    return Vocabulary(
        tokens=tuple(tokens),
        scale=np.array([rows.get(t, -1) for t in tokens], dtype=np.int32),
        knots=np.array([own for own, _, _ in facts]).reshape(-1, _QUANTILES + 1),
        mean=np.array([own for _, own, _ in facts]),
        sd=np.where(sd > 0, sd, 1.0),
        settings=settings,
    )
