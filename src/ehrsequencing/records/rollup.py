"""Ontology roll-up: what a rare code becomes by its ancestors in `codes.parquet`, fitted on training subjects only.

`on` replaces a rare code by its nearest frequent ancestor. From the leaves up, each node counts the training subjects
of its own code and of the rare codes that were moved up to it. With `min_subjects` of them it becomes a token, else all
its codes move on to the next ancestor. `ancestors` keeps codes as they are and adds, as codes without a number, every
ancestor that enough training subjects have at or below it.

A roll-up is saved with every model, and must not reveal a code that only one patient has. So codes are stored as
hashes, and whoever has a code can still look it up.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from ehrsequencing.core.arrays import Ints

Parents = Mapping[str, list[str]]


@dataclass(frozen=True)
class Rollup:
    """What codes become.

    Attributes:
        mode: `on`: each code of `to` is read as its one ancestor; `ancestors`: it brings its ancestors along.
        to: `hashed` code → tokens.
    """

    mode: Literal["off", "on", "ancestors"] = "off"
    to: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def replacement(self, code: str) -> str | None:
        """The token that replaces a code."""
        return next(iter(self.to.get(hashed(code), ())), None) if self.mode == "on" else None

    def extra(self, code: str) -> tuple[str, ...]:
        """The tokens that are added to a code."""
        return self.to.get(hashed(code), ()) if self.mode == "ancestors" else ()

    def as_json(self) -> dict[str, Any]:
        """Content of the key `rollup` of `vocabulary.json`."""
        return {"mode": self.mode, "to": {key: list(self.to[key]) for key in sorted(self.to)}}

    @classmethod
    def from_json(cls, text: Mapping[str, Any]) -> "Rollup":
        """Read what `as_json` gave."""
        return cls(text["mode"], {key: tuple(tokens) for key, tokens in text["to"].items()})


def hashed(code: str) -> str:
    """The name under which a roll-up keeps a code."""
    return hashlib.sha256(code.encode()).hexdigest()[:24]


class Carriers:
    """Training subjects of each code: all of them while they are fewer than `enough`, else `enough` of them."""

    def __init__(self, enough: int) -> None:
        self.enough = enough
        self._of: dict[int, set[int]] = {}

    def add(self, code: Ints, subject_id: Ints) -> None:
        """Add a shard's distinct (code number, subject id) pairs, sorted by code."""
        rank = np.arange(len(code)) - np.searchsorted(code, code)
        few = rank < self.enough  # a subject is in one shard only: no pair comes twice
        for number, who in zip(code[few].tolist(), subject_id[few].tolist(), strict=True):
            known = self._of.setdefault(number, set())
            if len(known) < self.enough:
                known.add(who)

    def of(self, number: int) -> set[int]:
        """Training subjects of a code."""
        return self._of.get(number, set())


def fit_rollup(
    mode: Literal["on", "ancestors"],
    carriers: Mapping[str, set[int]],
    *,
    parents: Parents,
    enough: int,
    excluded: Callable[[str], bool],
) -> Rollup:
    """Find out what every code of the ontology becomes.

    Args:
        mode: `on` or `ancestors`.
        carriers: Training subjects of each code of the data (`Carriers`).
        parents: Parents of each code.
        enough: Training subjects that a token must have.
        excluded: Codes that make no token, and so no ancestor.

    Returns:
        The roll-up of every code that `parents` knows.
    """
    chains = {
        code: ancestors(code, parents, excluded=excluded) for code in parents if not excluded(code)
    }
    make = _replacements if mode == "on" else _companions
    found = make(carriers, chains, parents, enough)
    return Rollup(mode, {hashed(code): tokens for code, tokens in found.items()})


def ancestors(
    code: str, parents: Parents, *, excluded: Callable[[str], bool] = lambda _: False
) -> list[str]:
    """Ancestors of a code, the nearest first, by name where they are equally near; cycles do no harm.

    >>> ancestors("a", {"a": ["c", "b"], "b": ["d"], "d": ["a"]})
    ['b', 'c', 'd']
    """
    found, near, seen = [], [code], {code}
    while near:
        near = sorted({up for here in near for up in parents.get(here, ())} - seen)
        seen.update(near)
        found += near
    return [up for up in found if not excluded(up)]


def _replacements(
    carriers: Mapping[str, set[int]], chains: Mapping[str, list[str]], parents: Parents, enough: int
) -> dict[str, tuple[str, ...]]:
    """`on`: rare code → the first node of its way up that stays."""
    stays = {code for code, who in carriers.items() if len(who) >= enough}
    at: dict[str, list[str]] = {}
    for code, who in carriers.items():
        if who and code in chains and code not in stays:
            at.setdefault(code, []).append(code)
    height, rejected = _heights(parents), set[str]()
    nodes = {node for code in list(at) for node in (code, *chains[code])}
    for node in sorted(nodes, key=lambda node: (height.get(node, 0), node)):
        climbers = at.pop(node, [])
        if node in stays:
            continue
        if len(set().union(*(carriers[code] for code in climbers))) >= enough:
            stays.add(node)
            continue
        rejected.add(node)
        for code in climbers:
            target = next((up for up in chains[code] if up not in rejected), None)
            if target is not None:
                at.setdefault(target, []).append(code)
    found = {
        code: tuple(up for up in chain if up in stays)[:1]
        for code, chain in chains.items()
        if code not in stays
    }
    return {code: target for code, target in found.items() if target}


def _companions(
    carriers: Mapping[str, set[int]], chains: Mapping[str, list[str]], parents: Parents, enough: int
) -> dict[str, tuple[str, ...]]:
    """`ancestors`: code → all its ancestors that enough subjects have at or below them."""
    below: dict[str, set[int]] = {}
    for code, who in carriers.items():
        for node in (code, *chains.get(code, ())):
            known = below.setdefault(node, set())
            if len(known) < enough:
                known |= who
    frequent = {node for node, who in below.items() if len(who) >= enough}
    found = {code: tuple(up for up in chain if up in frequent) for code, chain in chains.items()}
    return {code: tokens for code, tokens in found.items() if tokens}


def _heights(parents: Parents) -> dict[str, int]:
    """Longest way down from each node to a leaf; nodes of a cycle, which have none, are above all others."""
    children: dict[str, int] = dict.fromkeys(_names(parents), 0)
    for ups in parents.values():
        for up in set(ups):
            children[up] += 1
    height = dict.fromkeys(children, len(children))
    ready = [node for node, count in children.items() if not count]
    height.update(dict.fromkeys(ready, 0))
    top: dict[str, int] = {}
    for node in ready:  # grows while it is walked: a node is ready when all its children have been
        height[node] = top.get(node, 0)
        for up in set(parents.get(node, ())):
            top[up] = max(top.get(up, 0), height[node] + 1)
            children[up] -= 1
            if not children[up]:
                ready.append(up)
    return height


def _names(parents: Parents) -> Iterable[str]:
    yield from parents
    for ups in parents.values():
        yield from ups
