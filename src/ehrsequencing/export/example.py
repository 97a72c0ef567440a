"""Predict with an exported run: torch runs `program.pt2`, NumPy does everything else. Nothing else is needed.

    python predict.py rows.csv                      risks at the end of the last visit
    python predict.py rows.csv --at 2024-03-01      risks as of this moment
    python predict.py rows.csv --at 2024-03-01T10:00 --query

`rows.csv` holds one subject's rows of MEDS, with the columns time, code and numeric_value; a code without a time is
always true. Rows after the moment asked about are not read. Who may be asked about (the task's index, nobody who had
the event) is for the caller to decide. `--query` asks as ehrseq asks at an index or a landmark, also where that is the
end of a visit.
"""

import argparse
import csv
import json
import re
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

DAY_US = 86_400_000_000
YEAR_US = 365.25 * DAY_US
RANK_SD = 12**0.5  # a uniform rank times this has standard deviation 1
Row = tuple[int | None, str, float | None]  # microseconds since 1970 or None, code, number or None
Array = np.ndarray[Any, Any]


def matches(pattern: str, code: str) -> bool:
    """Whether a pattern matches a whole code, as in ehrseq: by RE2, whose time grows with the length of the code.

    Where PyArrow is not installed, Python's own patterns stand in. They mean the same but for rarities, and can take
    very long for a code that somebody made for this.
    """
    try:
        import pyarrow
        import pyarrow.compute
    except ImportError:
        return re.fullmatch(pattern, code) is not None
    return bool(
        pyarrow.compute.match_substring_regex(pyarrow.scalar(code), rf"\A(?:{pattern})\z").as_py()
    )


class ExportedRun:
    """The program and what it needs, read from a folder that `ehrseq export` wrote."""

    def __init__(self, folder: Path) -> None:
        self.settings: dict[str, Any] = json.loads(
            (folder / "settings.json").read_text(encoding="utf-8")
        )
        tokens = json.loads((folder / "vocabulary.json").read_text(encoding="utf-8"))
        self.id_of_code: dict[str, int] = tokens["codes"]
        self.id_of_unknown: dict[str, int] = tokens["unknown"]  # code type → token
        with np.load(folder / "arrays.npz", allow_pickle=False) as arrays:
            self.arrays: dict[str, Array] = {name: arrays[name] for name in arrays.files}
        self.program = torch.export.load(folder / "program.pt2").module()

    def predict(
        self, rows: Iterable[Row], *, at_us: int | None = None, query: bool | None = None
    ) -> dict[str, Any]:
        """Risks (causes, horizons) at a moment; the `visit` head gives the risk until the next visit, (1, 1)."""
        inputs, row, moment = self.inputs(rows, at_us=at_us, query=query)
        with torch.no_grad():
            logits = (
                self.program(*(torch.from_numpy(array) for array in inputs))[row].double().numpy()
            )
        s = self.settings
        if s["head"] == "visit":
            risk = 1 / (1 + np.exp(-logits.reshape(1, 1)))
        else:
            risk = cumulative_incidence(
                logits, s["edges_days"], s["horizons_days"], s["start_days"]
            )
        return {
            "time_us": moment,
            "causes": s["causes"],
            "horizons_days": s["horizons_days"],
            "risk": risk,
        }

    # ---- rows → the program's inputs -----------------------------------------------------------------------------

    def inputs(
        self, rows: Iterable[Row], *, at_us: int | None = None, query: bool | None = None
    ) -> tuple[tuple[Array, ...], int, int]:
        """The program's inputs, the row of its output that answers, and the moment in microseconds."""
        known = [
            row for row in dict.fromkeys(rows) if row[0] is None or at_us is None or row[0] <= at_us
        ]
        timed = sorted(
            ((t, code, number) for t, code, number in known if t is not None),
            key=lambda row: row[0],
        )
        birth = next((t for t, code, _ in timed if code == "MEDS_BIRTH"), None)
        events = [row for row in timed if not self.makes_no_token(row[1])]
        times = np.array([t for t, _, _ in events], dtype=np.int64)
        visit = self.visits(times)
        first, last = (
            np.flatnonzero(np.diff(visit, **{side: -1})) for side in ("prepend", "append")
        )
        start, end = times[first], times[last]
        moment = at_us if at_us is not None else int(end[-1]) if len(end) else None
        if moment is None:
            raise ValueError("there is no visit: say when to predict")
        is_asked = query if query is not None else not (len(end) and end[-1] == moment)
        codes, values, offsets = self.visit_tokens(events, times, visit, len(start))
        delta = np.maximum(np.r_[0, start[1:] - end[:-1]][: len(start)] / DAY_US, 0)
        moments, is_query = start, np.zeros(len(start) + 1 + is_asked, dtype=bool)
        if is_asked:
            own_codes, own_values = self.summaries(events, times, moment)
            codes, values = np.r_[codes, own_codes], np.concatenate([values, own_values])
            offsets, moments = np.r_[offsets, len(codes)], np.r_[moments, moment]
            delta = np.r_[delta, (moment - end[-1]) / DAY_US if len(end) else 0.0]
        age = self.ages(moments, birth)
        # One more row that nobody sees, with two empty codes: the program wants at least two of each.
        is_query[len(start) :] = True
        codes, values = np.r_[codes, 0, 0], np.concatenate([values, np.full((2, 2), np.nan)])
        static = self.static_tokens([code for t, code, _ in known if t is None])
        weights = np.r_[np.ones(len(static)) / max(len(static), 1), 0, 0]
        found = (
            codes.astype(np.int64),
            np.r_[offsets, len(codes)].astype(np.int64),
            np.r_[age, np.nan].astype(np.float32),
            np.r_[delta, 0].astype(np.float32),
            is_query,
            values.astype(np.float32),
            self.arrays["code_types"][codes],
            np.r_[static, 0, 0].astype(np.int64),
            weights.astype(np.float32),
        )
        return found, len(is_query) - 2, moment

    def makes_no_token(self, code: str) -> bool:
        """Whether a code matches a pattern of those that the run does not read."""
        for pattern in self.settings["excluded"]:
            if pattern.startswith("re:"):
                if matches(pattern[3:], code):
                    return True
            elif code == pattern or (pattern.endswith("*") and code.startswith(pattern[:-1])):
                return True
        return False

    def visits(self, times: Array) -> Array:
        """Number of the visit of each event."""
        rule = self.settings["visits"]
        if rule["by"] == "gap":
            opens = np.diff(times, prepend=times[:1]) >= round(rule["gap"] * DAY_US)
        else:
            bins = times // (DAY_US if rule["by"] == "day" else round(rule["window"] * DAY_US))
            opens = np.diff(bins, prepend=bins[:1]) != 0
        return np.cumsum(opens)

    def visit_tokens(
        self, events: list[Any], times: Array, visit: Array, n: int
    ) -> tuple[Array, Array, Array]:
        """Tokens by visit, time, then id; in a visit, a token without a number stands once."""
        ids = np.array([self.token(code) for _, code, _ in events], dtype=np.int64)
        ids, values = self.encode(
            ids, np.array([_float32(number) for _, _, number in events], dtype=np.float64)
        )
        order = np.lexsort((ids, times, visit))
        kept, seen = [], set[tuple[int, int]]()
        for k in order.tolist():
            key = (int(visit[k]), int(ids[k]))
            if np.isnan(values[k, 0]) and key in seen:
                continue
            if np.isnan(values[k, 0]):
                seen.add(key)
            kept.append(k)
        counts = np.bincount(visit[kept], minlength=n) if kept else np.zeros(n, dtype=np.int64)
        return ids[kept], values[kept], np.r_[0, np.cumsum(counts)]

    def summaries(self, events: list[Any], times: Array, moment: int) -> tuple[Array, Array]:
        """What a query carries: seven numbers of each numeric code's past, as tokens."""
        none = np.zeros(0, dtype=np.int64), np.zeros((0, 2))
        rule, past = self.settings["values"], dict[int, list[tuple[int, float]]]()
        if not rule["carry"] or rule["mode"] == "none":
            return none
        for k, (_, code, number) in enumerate(events):
            token, value = self.token(code), _float32(number)
            if not np.isnan(value) and self.arrays["summary_tokens"][token, 0] >= 0:
                past.setdefault(token, []).append((int(times[k]), value))
        if not past:
            return none
        tokens, numbers = list[Array](), list[float]()
        for token in sorted(past):
            moments, values = (
                np.array([t for t, _ in past[token]]),
                np.array([v for _, v in past[token]]),
            )
            tokens.append(self.arrays["summary_tokens"][token])
            numbers += [values[-1], values[0], values.mean(), values.min(), values.max()]
            numbers += [(moment - moments[-1]) / DAY_US, float(len(values))]
        return self.encode(np.concatenate(tokens).astype(np.int64), np.array(numbers))

    def static_tokens(self, codes: list[str]) -> Array:
        """Distinct tokens of codes without a time."""
        return np.unique(
            [self.token(code) for code in codes if not self.makes_no_token(code)]
        ).astype(np.int64)

    def token(self, code: str) -> int:
        """The token of a code: its own, or the unknown one of its type (the text before its first `//`)."""
        head, separator, _ = code.partition("//")
        found = self.id_of_code.get(code, self.id_of_unknown.get(head if separator else ""))
        return 1 if found is None else found

    def encode(self, ids: Array, number: Array) -> tuple[Array, Array]:
        """Tokens (changed to those of bins where the run has them), and rank and standardised value of each number."""
        ids, out = ids.copy(), np.full((len(ids), 2), np.nan)
        scale, rule = self.arrays["scale"], self.settings["values"]
        for k in np.flatnonzero(~np.isnan(number)).tolist():
            row = int(scale[ids[k]])
            if row < 0 or rule["mode"] == "none":
                continue
            rank = rank_among(self.arrays["knots"][row], number[k])
            if rule["mode"] == "bins":
                ids[k] = self.arrays["first_bin"][ids[k]] + min(
                    int(rank * rule["bins"]), rule["bins"] - 1
                )
                continue
            z = (number[k] - self.arrays["mean"][row]) / self.arrays["sd"][row]
            out[k] = (rank - 0.5) * RANK_SD, min(max(z, -4.0), 4.0)
        return ids, out

    def ages(self, moments: Array, birth: int | None) -> Array:
        """Age in years, NaN where it is unknown, negative or over 120."""
        if birth is None:
            return np.full(len(moments), np.nan)
        age = (moments - birth) / YEAR_US
        return np.where((age < 0) | (age > 120), np.nan, age)


def rank_among(knots: Array, number: float) -> float:
    """Rank in [0, 1] of a number among the quantiles of its code; tied quantiles share the middle of their run."""
    last = len(knots) - 1
    below = int(np.searchsorted(knots, number, side="left"))
    low, at = max(below - 1, 0), min(below, last)
    if knots[at] == number:
        place = float(np.flatnonzero(knots == number).mean())
    else:
        width = knots[at] - knots[low]
        place = low + (number - knots[low]) / (width if width > 0 else 1.0)
    return min(max(place, 0.0), float(last)) / last


def cumulative_incidence(
    log_hazards: Array, edges: list[float], horizons: list[float], start: float = 0.0
) -> Array:
    """(causes, horizons) probability of each cause by each horizon, given no event until `start`; in days.

    F_e(t) = Σ_k (λ_{e,k} / λ_{·,k}) · (S(τ_{k−1}) − S(min(t, τ_k)))
    """
    hazards = np.exp(log_hazards)  # (causes, bins) per day
    total = hazards.sum(axis=0)
    lower, upper = np.r_[0.0, edges], np.r_[edges, np.inf]
    risks = []
    for horizon in horizons:
        days = np.maximum(np.minimum(horizon, upper) - np.maximum(start, lower), 0.0)
        alive = np.exp(-np.r_[0.0, np.cumsum(total * days)[:-1]])  # at the start of each bin
        risks.append((hazards / total * (alive * -np.expm1(-total * days))).sum(axis=1))
    return np.stack(risks, axis=1)


def _float32(number: float | None) -> float:
    """Numbers of MEDS are float32; what is none (or beyond 1e37) is no number."""
    if number is None or not abs(number) < 1e37:
        return float("nan")
    return float(np.float32(number))


def micros(text: str) -> int:
    """A time without a zone as microseconds since 1970."""
    since = datetime.fromisoformat(text) - datetime(1970, 1, 1)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def read_rows(path: Path) -> list[Row]:
    """One subject's rows from CSV."""
    with path.open(newline="", encoding="utf-8") as file:
        return [
            (
                micros(row["time"]) if row["time"] else None,
                row["code"],
                float(row["numeric_value"] or "nan"),
            )
            for row in csv.DictReader(file)
        ]


def main() -> None:
    """Print the risks of one subject."""
    parser = argparse.ArgumentParser(description="Predict with an exported run.")
    parser.add_argument("rows", type=Path, help="CSV with the columns time, code, numeric_value")
    parser.add_argument("--at", help="the moment; default: the end of the last visit")
    parser.add_argument("--query", action="store_true", help="ask as at an index or a landmark")
    given = parser.parse_args()
    run = ExportedRun(Path(__file__).parent)
    at = None if given.at is None else micros(given.at)
    found = run.predict(read_rows(given.rows), at_us=at, query=given.query or None)
    for cause, risks in zip(found["causes"], found["risk"].tolist(), strict=True):
        for days, risk in zip(found["horizons_days"] or [None], risks, strict=True):
            print(
                f"{cause:<24} {'until the next visit' if days is None else f'within {days:g} days'}: {risk:.6f}"
            )


if __name__ == "__main__":
    main()
