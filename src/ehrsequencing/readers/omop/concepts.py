"""OMOP's concept ids → MEDS codes with descriptions and parents, from the tables of the vocabulary."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ehrsequencing.core.arrays import Ints
from ehrsequencing.readers.cleaning_rules import END_SUFFIX
from ehrsequencing.readers.meds_writer import CodeFacts
from ehrsequencing.readers.omop.source import Source
from ehrsequencing.readers.omop.tables import (
    ancestor_rows,
    concept_rows,
    relationship_kinds,
    relationship_rows,
)
from ehrsequencing.readers.rows import clean_codes

# Concepts that every OMOP database uses, even without a row in its table concept: code and description.
KNOWN = {8507: ("Gender//M", "MALE"), 8532: ("Gender//F", "FEMALE")}
_NULL = pa.scalar(None, pa.string())


class Concepts:
    """Names every concept id: `VOCABULARY//CODE`, or `OMOP//id` where the table concept lacks it.

    Holds ids and codes of the whole table (some 300 MB for all of Athena). Descriptions and parents are read at the
    end, only for the concepts that were used.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        ids, codes = [np.zeros(0, np.int64)], [pa.array([], pa.string())]
        for part in source.tables.get("concept", []):
            for batch in source.stream(concept_rows(part.table).drop("concept_name"), part):
                joined = pc.binary_join_element_wise(
                    batch["vocabulary_id"], batch["concept_code"], "//"
                )
                good = pc.and_(batch["concept_id"].is_valid(), joined.is_valid())
                ids.append(batch["concept_id"].filter(good).to_numpy())
                codes.extend(clean_codes(joined.filter(good)).chunks)
        ids.append(np.array(sorted(KNOWN), np.int64))  # last, so that the table's own rows win
        codes.append(pa.array([KNOWN[i][0] for i in sorted(KNOWN)], pa.string()))
        every, first = np.unique(np.concatenate(ids), return_index=True)
        self._ids: Ints = every
        self._codes = pa.concat_arrays(codes).take(pa.array(first))
        self._used = np.zeros(0, dtype=np.int64)
        self._bases: dict[str, str] = {}  # a code with a unit, a value or an end → the code without

    @property
    def unnamed(self) -> int:
        """How many concepts were used that the table lacks."""
        return int((~np.isin(self._used, self._ids)).sum())

    def codes(self, concept_id: pa.ChunkedArray, *, family: str = "OMOP") -> pa.ChunkedArray:
        """(n,) codes of (n,) concept ids without nulls; `FAMILY//id` for an id that the table lacks."""
        ids, inverse = np.unique(concept_id.to_numpy(), return_inverse=True)
        self._used = np.union1d(self._used, ids[ids != 0])
        return pa.chunked_array([self._names(ids, family).take(pa.array(inverse))])

    def _names(self, ids: Ints, family: str = "OMOP") -> pa.Array:
        own = pa.array([f"{family}//{i}" for i in ids.tolist()], pa.string())
        at = np.searchsorted(self._ids, ids)
        at[at == len(self._ids)] = 0
        return pc.if_else(pa.array(self._ids[at] == ids), self._codes.take(pa.array(at)), own)

    def short_codes(self, concept_id: pa.ChunkedArray) -> tuple[pa.ChunkedArray, pa.Array]:
        """(n,) codes without their vocabulary (null for an id of null or 0), and (n,) whether the table has the id."""
        ids, inverse = np.unique(pc.fill_null(concept_id, 0).to_numpy(), return_inverse=True)
        short = pc.replace_substring_regex(self._names(ids), r"^.*?//", "")
        short = pc.if_else(pa.array(ids == 0), _NULL, short)
        known = np.isin(ids, self._ids)[inverse]
        return pa.chunked_array([short.take(pa.array(inverse))]), pa.array(known)

    def derived(self, code: pa.ChunkedArray, suffix: pa.ChunkedArray) -> pa.ChunkedArray:
        """CODE//SUFFIX where there is a suffix, else CODE; the longer code gets CODE as its parent."""
        longer = clean_codes(pc.binary_join_element_wise(code, suffix, "//"))
        pairs = pa.table({"longer": longer, "code": code}).filter(longer.is_valid())
        for pair in pairs.group_by(["longer", "code"], use_threads=False).aggregate([]).to_pylist():
            self._bases[pair["longer"]] = pair["code"]
        return pc.coalesce(longer, code)

    def with_end(self, code: pa.ChunkedArray) -> None:
        """Make each code the parent of the code of its visit's end."""
        self._bases |= {f"{base}{END_SUFFIX}": base for base in pc.unique(code).to_pylist()}

    def facts(self, seen: set[str]) -> dict[str, CodeFacts]:
        """Descriptions and parents of the codes in `seen` and of all their ancestors."""
        parents = self._parents()
        ids = np.unique(
            np.r_[self._used, [n for child, ups in parents.items() for n in (child, *ups)]].astype(
                np.int64
            )
        )
        code_of = (
            dict(zip(ids.tolist(), self._names(ids).to_pylist(), strict=True)) if len(ids) else {}
        )
        described = self._descriptions(ids)
        facts: dict[str, CodeFacts] = {}
        nothing = CodeFacts()
        for number, code in code_of.items():
            before = facts.get(code, nothing)
            above = {code_of[up] for up in parents.get(number, ())} - {code}
            ups = tuple(sorted(above.union(before.parents))) if above else before.parents
            facts[code] = CodeFacts(before.description or described.get(number), ups)
        for code in seen & self._bases.keys():
            base = self._bases[code]
            facts[code] = CodeFacts(facts.get(base, nothing).description, (base,))
        return facts

    def _parents(self) -> dict[int, list[int]]:
        """Concept → its direct parents, for the used concepts and their ancestors."""
        children, parents = self._edges()
        order = np.lexsort((parents, children))
        children, parents = children[order], parents[order]
        out: dict[int, list[int]] = {}
        frontier = self._used
        while len(frontier):
            low, high = (np.searchsorted(children, frontier, side) for side in ("left", "right"))
            for child, a, b in zip(frontier.tolist(), low.tolist(), high.tolist(), strict=True):
                out[child] = sorted(set(parents[a:b].tolist()))
            frontier = np.array(
                sorted({up for c in frontier.tolist() for up in out[c]} - set(out)), dtype=np.int64
            )
        return {child: ups for child, ups in out.items() if ups}

    def _edges(self) -> tuple[Ints, Ints]:
        """(m,) children and (m,) parents: by concept_ancestor, else by 'Is a'; and from source to standard concepts."""
        ancestors = self._source.tables.get("concept_ancestor", [])
        kinds = relationship_kinds(bool(ancestors))
        found = [(part, ancestor_rows(part.table)) for part in ancestors]
        relationships = self._source.tables.get("concept_relationship", [])
        found += [(part, relationship_rows(part.table, kinds)) for part in relationships]
        children, parents = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for part, expression in found:
            for batch in self._source.stream(expression, part):
                whole = batch.filter(pc.and_(batch["child"].is_valid(), batch["parent"].is_valid()))
                differs = whole.filter(pc.not_equal(whole["child"], whole["parent"]))
                children.append(differs["child"].to_numpy())
                parents.append(differs["parent"].to_numpy())
        return np.concatenate(children), np.concatenate(parents)

    def _descriptions(self, ids: Ints) -> dict[int, str]:
        out = {number: description for number, (_, description) in KNOWN.items()}
        for part in self._source.tables.get("concept", []):
            for batch in self._source.stream(
                concept_rows(part.table).select("concept_id", "concept_name"), part
            ):
                wanted = pc.is_in(batch["concept_id"], value_set=pa.array(ids))
                rows = batch.filter(pc.and_(wanted, batch["concept_name"].is_valid()))
                out |= dict(
                    zip(
                        rows["concept_id"].to_pylist(),
                        rows["concept_name"].to_pylist(),
                        strict=True,
                    )
                )
        return out
