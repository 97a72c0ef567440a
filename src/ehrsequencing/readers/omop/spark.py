"""OMOP tables in a catalog of Spark, behind the methods of an Ibis connection that an import uses.

Ibis itself would collect a whole table as a pandas frame: too large, and whole numbers beside nulls become floats.
Here, each partition's rows come as Arrow.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import Any

import pyarrow as pa

from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.spark import spark_session
from ehrsequencing.readers.date_order import PATTERNS

_WHERE = "the Spark database"
_BLOCK_ROWS = 100_000  # come at once from a worker
_DATE = r"^\s*(\d{4}-\d{1,2}-\d{1,2})"
_ENDS_AS_WHOLE = r"\.0*\s*$"  # of 7.0
_SUFFIXED = r"[\d.][dDfF]\s*$"  # 7d, which Spark reads as a number


class SparkTables:
    """Tables of one schema. Its `disconnect` must be called.

    Args:
        place: `HOST:PORT` of a master, or `local`.
        schema: SCHEMA or CATALOG/SCHEMA; empty for Spark's current one.

    Raises:
        EhrseqError: pyspark is not installed, the master does not answer, or Spark does not start.
    """

    name = "pyspark"

    def __init__(self, place: str, schema: str) -> None:
        with ExitStack() as stack:
            try:
                self._session = stack.enter_context(spark_session(place))
                import ibis

                # sets the time zone of the session to UTC
                self._ibis = ibis.pyspark.connect(self._session)
            except ImportError as error:
                fix = "pip install 'ehrsequencing[omop,spark]'"
                raise EhrseqError("needs pyspark", where=_WHERE, fix=fix) from error
            except ConnectionError:
                fix = "check host and port, and that the master runs the same version of Spark"
                raise EhrseqError("no master answers", where=_WHERE, fix=fix) from None
            # what cannot be cast is an error
            self._session.conf.set("spark.sql.ansi.enabled", "true")
            self._session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(_BLOCK_ROWS))
            catalog, _, database = schema.rpartition("/")
            if catalog:
                self._session.catalog.setCurrentCatalog(catalog)
            if database:
                self._session.catalog.setCurrentDatabase(database)
            self._stack = stack.pop_all()

    def disconnect(self) -> None:
        """Close the session, if it was opened here."""
        self._stack.close()

    def list_tables(self) -> list[str]:
        """Names of all tables of the schema."""
        return [row.tableName for row in self._session.sql("SHOW TABLES").collect()]

    def table(self, name: str) -> Any:
        """A table, of Ibis."""
        return self._ibis.table(name)

    def compile(self, expression: Any, *, pretty: bool = False) -> str:
        """An expression as Spark's SQL."""
        return str(self._ibis.compile(_as_elsewhere(expression), pretty=pretty))

    def to_pyarrow_batches(self, expression: Any, *, chunk_size: int) -> Iterator[pa.RecordBatch]:
        """The rows of an expression, some of a partition at once, in no order."""
        schema = expression.schema().to_pyarrow()
        frame = self._session.sql(self.compile(expression)).mapInArrow(_packing(), "block binary")
        for row in frame.toLocalIterator(prefetchPartitions=True):
            rows = pa.ipc.open_stream(row.block).read_all().cast(schema)
            yield from rows.to_batches(max_chunksize=chunk_size)

    def to_pyarrow(self, expression: Any) -> pa.Table:
        """All rows of an expression."""
        schema = expression.schema().to_pyarrow()
        return pa.Table.from_batches(
            self.to_pyarrow_batches(expression, chunk_size=_BLOCK_ROWS), schema
        )


def _packing() -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What Spark's workers do: each batch becomes bytes in one row.

    A function inside a function is sent with its code, so that the workers need PyArrow and nothing of ours.
    """

    def pack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow

        for batch in batches:
            sink = pyarrow.BufferOutputStream()
            with pyarrow.ipc.new_stream(sink, batch.schema) as writer:
                writer.write_batch(batch)
            block = pyarrow.array([sink.getvalue().to_pybytes()], pyarrow.binary())
            yield pyarrow.RecordBatch.from_arrays([block], ["block"])

    return pack


def _as_elsewhere(expression: Any) -> Any:
    """An expression whose casts of text give in Spark what they give in DuckDB.

    Spark refuses 7.0 as a whole number and a date that other text follows, reads 7d as a number, and knows names of
    time zones. And its replacements name a group as $1.
    """
    import ibis
    import ibis.expr.operations as ops

    def cast(text: Any, kind: Any) -> Any:
        if kind.is_integer():
            return text.re_replace(_ENDS_AS_WHOLE, "").try_cast(kind)
        if kind.is_date():
            return text.re_extract(_DATE, 1).try_cast(kind)
        reads = (
            text.re_search(PATTERNS["ymd"]) if kind.is_timestamp() else ~text.re_search(_SUFFIXED)
        )
        return reads.ifelse(text.try_cast(kind), ibis.null().cast(kind))

    def changed(node: Any, given: dict[str, Any] | None) -> Any:
        node = node if given is None else node.__recreate__(given)
        if isinstance(node, ops.TryCast) and node.arg.dtype.is_string():
            return cast(node.arg.to_expr(), node.to).op()
        if isinstance(node, ops.RegexReplace):
            groups = node.replacement.value.replace("\\", "$")
            return node.arg.to_expr().re_replace(node.pattern.value, groups).op()
        return node

    return expression.op().replace(changed).to_expr()
