"""Make `r_oracles.json`: what R says of the data of this file, which the tests compare ours with.

R is needed here only (Debian: r-base-core r-cran-survival r-cran-riskregression r-cran-jsonlite), not where tests run:

    PYTHONPATH=tests python -m reference.r_oracles ../shared/data/pbc2_meds
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

FILE = Path(__file__).with_suffix(".json")


def flat_rows() -> pd.DataFrame:
    """Start–stop rows of 150 people in whole days, so that events tie; two kinds of events."""
    rng, rows = np.random.default_rng(7), []
    for person in range(150):
        day, age, sex = int(rng.integers(0, 10)), int(rng.integers(40, 80)), "fm"[int(rng.integers(2))]
        for visit in range(4):
            marker = float(np.round(rng.lognormal(), 3)) + 0.1
            stop = day + int(rng.integers(1, 15))
            happens = rng.random() < 0.1 + 0.05 * visit + 0.1 * (marker > 1.5)
            status = int(rng.integers(1, 3)) if happens else 0
            rows.append((person, day, stop, status, age, marker, sex))
            day = stop
            if happens:
                break
    return pd.DataFrame(rows, columns=["id", "start", "stop", "status", "age", "marker", "sex"])


def pbc2_rows(folder: Path) -> pd.DataFrame:
    """The MEDS rows of PBC2 with days since enrolment."""
    rows = pd.concat([pd.read_parquet(path) for path in sorted(folder.rglob("data/**/*.parquet"))])
    enrolled = rows[rows["code"] == "ENROLLMENT"].set_index("subject_id")["time"]
    day = (rows["time"] - rows["subject_id"].map(enrolled)) / pd.Timedelta(days=1)
    columns = {"subject": rows["subject_id"], "day": day, "code": rows["code"]}
    return pd.DataFrame(columns).assign(value=rows["numeric_value"].astype(np.float64))


def risk_rows() -> pd.DataFrame:
    """Times and causes of 500 people, and two models' risks by 365 days; no time is the horizon."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=500)
    ends = [rng.exponential(600 * np.exp(-x)), rng.exponential(1500, 500), rng.uniform(100, 1200, 500)]
    time, first = np.round(np.min(ends, axis=0), 1) + 0.05, np.argmin(ends, axis=0)
    right = 1 - np.exp(-365 * np.exp(x) / 700)
    noisy = np.clip(right + rng.normal(0, 0.2, 500), 0.01, 0.99)
    return pd.DataFrame({"time": time, "cause": np.array([1, 2, 0])[first], "a": right, "b": noisy})


def main(pbc2: Path) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        flat_rows().to_csv(folder / "table.csv", index=False)
        pbc2_rows(pbc2).to_csv(folder / "pbc2.csv", index=False, float_format="%.17g")
        files = [str(folder / name) for name in ("table.csv", "pbc2.csv", "cox.json")]
        subprocess.run(["Rscript", str(FILE.with_name("cox.R")), *files], check=True)
        risk_rows().to_csv(folder / "risks.csv", index=False, float_format="%.17g")
        more = [str(folder / name) for name in ("risks.csv", "score.json")]
        subprocess.run(["Rscript", str(FILE.with_name("score.R")), *more], check=True)
        found = {name: json.loads((folder / f"{name}.json").read_text()) for name in ("cox", "score")}
    FILE.write_text(json.dumps(found, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
