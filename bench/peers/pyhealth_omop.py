"""PyHealth's event table of an OMOP database, in PyHealth's environment: `python pyhealth_omop.py DATA CACHE`.

DATA is what `bench/omop.py` wrote: a folder of Parquet files for each table. PyHealth reads it by its own `OMOPDataset`
with the tables, joins and columns of its own configuration. Three things of that differ: a table is a folder of Parquet
files and not one CSV file, columns that this database lacks are left out, and a table whose columns of time are absent
in some rows keeps those rows without a time, as it does for CSV files. It has no configuration for `observation`.
"""

import argparse
import functools
import json
from pathlib import Path
from typing import Any

from pyhealth_step import import_pyhealth


def without_lock(self: Any, instance: Any, owner: Any = None) -> Any:
    """`functools.cached_property.__get__` as in Python 3.12, which PyHealth asks for: it takes no lock.

    Python 3.11 holds one lock for all instances of a class. Dask computes a property of one thread's expression, waits
    in it for another thread that needs the same property of its own expression, and so for ever.
    """
    if instance is None:
        return self
    if self.attrname not in instance.__dict__:
        instance.__dict__[self.attrname] = self.func(instance)
    return instance.__dict__[self.attrname]


functools.cached_property.__get__ = without_lock  # type: ignore[method-assign]
TABLES = ["condition_occurrence", "procedure_occurrence", "drug_exposure", "measurement"]
# Worker processes import this file again, and they too need a PyHealth that can be imported.
datasets, _ = import_pyhealth()


def configuration(data: Path, cache: Path) -> Path:
    """PyHealth's configuration of OMOP for the tables and columns that are there."""
    import pyarrow.dataset as ds
    import pyhealth.datasets  # type: ignore[import-not-found]
    import yaml  # type: ignore[import-untyped]

    shipped = Path(pyhealth.datasets.__file__).parent / "configs" / "omop.yaml"
    told = yaml.safe_load(shipped.read_text())
    for name, table in told["tables"].items():
        has = set(ds.dataset(data / name).schema.names)
        for source in (table, *table.get("join", [])):
            source["file_path"] = source["file_path"].removesuffix(".csv")
        table["attributes"] = [column for column in table["attributes"] if column in has]
    path = cache / "omop.yaml"
    path.write_text(yaml.safe_dump(told))
    return path


def main() -> None:
    """Build the event table, which PyHealth writes to its cache, and count its rows and patients."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("cache", type=Path)
    parser.add_argument(
        "--workers", type=int, default=1, help="processes of PyHealth (default 1, as PyHealth's)"
    )
    arguments = parser.parse_args()
    arguments.cache.mkdir(parents=True, exist_ok=True)
    dataset = datasets.OMOPDataset(
        root=str(arguments.data.resolve()),
        tables=TABLES,
        config_path=str(configuration(arguments.data, arguments.cache)),
        cache_dir=str(arguments.cache.resolve()),
        num_workers=arguments.workers,
    )
    import polars as pl

    found = dataset.global_event_df.select(
        pl.len(), pl.col("patient_id").n_unique().alias("patients")
    ).collect()
    print(json.dumps({"rows": found["len"][0], "patients": found["patients"][0]}))


if __name__ == "__main__":
    main()
