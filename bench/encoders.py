"""What each encoder can and cannot learn: `python bench/encoders.py OUT [--quick]`; docs/lab-notes/25.

Two simulated worlds, small enough to be learned, in which the truth is known. In the first, six mechanisms act at once,
and each architecture learns from more and more subjects. In the second only pairs of codes act, and what stands
behind the visit encoder is taken away piece by piece. All runs share one recipe and are evaluated on the same held-out
subjects. Prints two tables, writes `encoders.json` and the figure. Finished runs are kept and not trained again.
"""

import argparse
import json
import shutil
import statistics
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch

from _true_risks import gain_shares, true_risk_errors
from ehrsequencing.config import load_study, load_task
from ehrsequencing.core.files import read_json
from ehrsequencing.core.outputs import write_manifest
from ehrsequencing.evaluation.oracle import Truth, bin_hazards, oracle_table
from ehrsequencing.evaluation.population import Population
from ehrsequencing.models.base import SurvivalModel
from ehrsequencing.prediction.run import Run
from ehrsequencing.records.prepare import prepare
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.simulate import SimulationConfig, simulate
from ehrsequencing.training.fit import fit
from ehrsequencing.training.plan import Plan
from ehrsequencing.training.train import Trainer

# Few codes, strong effects that last until the next visit or two, many outcomes; no age, sex, stays, frailty or
# informative visits. A visit holds a pair, a code whose order counts, and two of 30 codes that mean nothing.
MIXED = SimulationConfig(
    history_max_years=1, follow_up_min_years=1, follow_up_max_years=2.5, drop_out_per_year=0, drop_out_effect=0,
    visits_per_year=3, visit_rate_spread=0, visit_effect=0, stay_visit_share=0, outcome_per_year=0.25,
    death_per_year=0.01, age_effect=0, death_age_effect=0, sex_effect=0, death_sex_effect=0,
    chronic_conditions=4, chronic_prevalence=0.25, chronic_effect=0.5, pairs=4, pair_visit_share=1, pair_effect=1.5,
    pair_memory=0, gap_effect=1.0, gap_days=90, order_effect=2.0, order_visit_share=1, decay_effect=1.5,
    decay_half_life_days=90, acute_visit_share=0.2, lab_effect=0.5, lab_visit_share=0.7, background_codes=30,
    background_per_visit=2, truth_futures=64,
)  # fmt: skip
# Two pairs alone: each visit holds one, and itself all there is to know; a follow-up in which little else can happen.
PAIRS = MIXED.model_copy(update={
    "history_max_years": 0.25, "follow_up_min_years": 0.5, "follow_up_max_years": 1.0, "visits_per_year": 2.0,
    "outcome_per_year": 0.8, "pairs": 2, "chronic_conditions": 0, "gap_effect": 0.0,
    "order_visit_share": 0.0, "acute_visit_share": 0.0, "lab_effect": 0.0, "lab_visit_share": 0.0,
    "background_codes": 10,
})  # fmt: skip
# share of a simulation; who train and tune
HELD_OUT, SIZES, PAIRS_SIZE = (
    0.15,
    (1_000, 4_000, 16_000),
    4_000,
)
RECIPE = (  # today's defaults, but for what so small a world wants: a small network, more and faster steps
    "model.size=small", "model.dropout=0.2", "training.learning_rate=2e-3", "training.visit_budget=512",
    "training.subjects_per_step=null", "training.min_steps=100", "training.epochs=20", "training.patience=3",
    "training.blend=false",
)  # fmt: skip
ENCODERS: dict[str, tuple[str, ...]] = {
    "mean": ("model.visit_encoder=mean",),
    "attention (query)": (),
    "attention (bottleneck)": ("model.scorer=bottleneck",),
    "mini-transformer": ("model.visit_encoder=transformer",),
    "flat": ("model.architecture=flat",),
}
FLAT_UP_TO = 4_000
READERS: dict[str, tuple[str, ...]] = {  # what stands behind the visit vectors
    "a linear head": ("model.wide_head=true",),
    "timeline, own visit": ("model.max_visits=1",),
    "timeline": (),
}
POOLING = ("mean", "attention (query)", "attention (bottleneck)", "mini-transformer")
MECHANISMS = ("chronic", "lab", "gap", "decay", "pair", "order")
INK, GREY, PALE = "#1f2328", "#59636e", "#d8dee4"
Row = dict[str, Any]


# ---- data ------------------------------------------------------------------------------------------------------------


def prepared_world(
    out: Path, name: str, world: SimulationConfig, sizes: tuple[int, ...]
) -> dict[int, Prepared]:
    """Simulate a world once; prepare its first n subjects, and all that are held out, for each n."""
    data, found = out / name, {}
    if not (data / "task.yaml").is_file():
        say(f"simulating {name}")
        simulate(data, subjects=round(max(sizes) / (1 - HELD_OUT)), seed=1, config=world)
    for size in sizes:
        part, folder = out / f"{name}-{size}-data", out / f"{name}-{size}-prepared"
        if not (folder / "manifest.json").is_file():
            say(f"preparing {size:,} subjects of {name}")
            shutil.rmtree(part, ignore_errors=True)
            first_subjects(data, part, size)
            prepare(part, folder, study=load_study(), tasks=[load_task(part / "task.yaml")])
        found[size] = Prepared(folder)
    return found


def first_subjects(data: Path, out: Path, size: int) -> None:
    """Copy a simulation with only the first `size` of those who are not held out."""
    shutil.copytree(data, out)
    splits = pq.read_table(out / "metadata" / "subject_splits.parquet")
    others = np.sort(splits.filter(pc.field("split") != "held_out")["subject_id"].to_numpy())
    kept = (pc.field("subject_id") <= int(others[:size][-1])) | (pc.field("split") == "held_out")
    pq.write_table(splits.filter(kept), out / "metadata" / "subject_splits.parquet")
    for path in [*out.glob("data/train/*.parquet"), *out.glob("data/tuning/*.parquet")]:
        pq.write_table(
            pq.read_table(path).filter(pc.field("subject_id") <= int(others[:size][-1])), path
        )
    facts = {
        name: value for name, value in read_json(out / "manifest.json").items() if name != "files"
    }
    write_manifest(out, facts)  # the data was changed on purpose


# ---- one run ---------------------------------------------------------------------------------------------------------


def result(
    folder: Path, prepared: Prepared, settings: tuple[str, ...], *, linear: bool = False
) -> Row:
    """Train and evaluate one model, unless it is there already; with `linear`, nothing but a linear head reads u."""
    summary = folder.with_suffix(".json")
    if not summary.is_file():
        # begun and not finished: its cost could not be told
        shutil.rmtree(folder, ignore_errors=True)
        study = load_study(None, [*RECIPE, *settings])
        plan = Plan.of(prepared, "simulated", study, as_given=True)
        trainer = Trainer(plan)
        if linear:
            for model in (trainer.model, trainer.training.averaged, trainer.training.best):
                silence_all_but_wide_head(model)
        started = time.process_time()
        fit(plan, folder, trainer=trainer)
        seconds = time.process_time() - started
        tuning = [
            json.loads(line)["tuning_nll"]
            for line in (folder / "history.jsonl").read_text().splitlines()
        ]
        facts: Row = {"epochs": len(tuning), "best_epoch": 1 + tuning.index(min(tuning))}
        facts["cpu_seconds_per_epoch"] = seconds / len(tuning)
        summary.write_text(json.dumps(judged(Run(folder), prepared) | facts))
    found: Row = json.loads(summary.read_text())
    shares = ", ".join(f"{name} {share:.2f}" for name, share in found["shares"].items())
    cost = f"best epoch {found['best_epoch']} of {found['epochs']}, {found['cpu_seconds_per_epoch']:.1f} s each"
    say(
        f"{folder.name}: gain {found['gain_share']:.2f} ± {1.96 * found['gain_share_se']:.2f}; {shares}; {cost}"
    )
    return found


def silence_all_but_wide_head(model: SurvivalModel) -> None:
    """Leave of the model behind the visit vectors only the bias and the wide head, which is linear in them."""
    torch.nn.init.zeros_(model.head.W2.weight).requires_grad_(False)


def judged(run: Run, prepared: Prepared) -> Row:
    """What the oracle says of a run on the held-out subjects."""
    held_out = Population.of_split(prepared, run.task, "held_out")
    if held_out.source is None:
        raise SystemExit(f"{prepared.folder} does not know where its records are")
    records = held_out.records
    truth = Truth.read(held_out.source, records, causes=run.task.causes)
    if truth is None:
        raise SystemExit(f"{held_out.source} holds no truth")

    predictor = run.predictor
    train = prepared.rows(run.task.name, "train")
    nll, rows = predictor.nll(records), records.rows
    found = oracle_table(truth, predictor, records, nll)
    risk = partial(predictor.risk, records)
    found |= gain_shares(
        truth,
        bin_hazards(risk(truth.edges_days[1:]), truth.edges_days),
        nll,
        train=train,
        rows=rows,
        edges_days=predictor.edges_days,
    )
    found |= true_risk_errors(truth, risk, subject=rows.subject, task=run.task)
    chosen = {
        key: found[key]
        for key in ("gain_share", "gain_share_se", "beats_oracle_z", "prediction_times")
    }
    shares = {row["mechanism"]: row["share"] for row in found["mechanisms"]}
    errors = {row["mechanism"]: row["share_se"] for row in found["mechanisms"]}
    parameters = sum(p.numel() for p in run.model.parameters())
    return chosen | {"shares": shares, "share_se": errors, "parameters": parameters}


def say(words: str) -> None:
    """Print a line at once, beside the tables."""
    print(words, file=sys.stderr, flush=True)


# ---- tables ----------------------------------------------------------------------------------------------------------


def mechanism_table(rows: list[Row]) -> str:
    """What was learned of each mechanism, by encoder and sample size; means over seeds, but each seed's pairs."""
    columns = [
        "encoder",
        "subjects",
        "share of the gain",
        *MECHANISMS,
        "CPU s per epoch",
        "epochs",
        "parameters",
    ]
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for runs in cells_of(rows):
        half = 1.96 * max(row["gain_share_se"] for row in runs)
        cells = [
            runs[0]["encoder"],
            f"{runs[0]['subjects']:,}",
            f"{mean_of(runs, 'gain'):.2f} ± {half:.2f}",
        ]
        for name in MECHANISMS:
            shares = (
                [row["shares"][name] for row in runs] if name == "pair" else [mean_of(runs, name)]
            )
            cells.append(", ".join(f"{share:.2f}" for share in shares))
        cells.append(f"{statistics.mean(row['cpu_seconds_per_epoch'] for row in runs):.1f}")
        cells += [", ".join(str(row["epochs"]) for row in runs), f"{runs[0]['parameters']:,}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def cells_of(rows: list[Row]) -> list[list[Row]]:
    """Runs that differ in their seed only, in the order of the rows."""
    found: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        found.setdefault((row["encoder"], row["subjects"]), []).append(row)
    return list(found.values())


def learned(row: Row, name: str) -> float:
    """The share of a mechanism, or of the gain in NLL."""
    return float(row["gain_share"] if name == "gain" else row["shares"][name])


def mean_of(runs: list[Row], name: str) -> float:
    """The mean share over seeds."""
    return statistics.mean(learned(row, name) for row in runs)


def pairs_table(rows: list[Row]) -> str:
    """What was learned of the pairs, by encoder, MLP and reader."""
    lines = [
        f"| encoder | MLP | {' | '.join(READERS)} | CPU s per epoch |",
        "|---" * (3 + len(READERS)) + "|",
    ]
    for name in POOLING:
        for mlp in (False, True):
            here = {
                row["reader"]: row for row in rows if row["encoder"] == name and row["mlp"] == mlp
            }
            cells = [
                f"{row['shares']['pair']:.2f} ± {1.96 * row['share_se']['pair']:.2f}"
                for row in here.values()
            ]
            cells.append(f"{here['timeline']['cpu_seconds_per_epoch']:.1f}")
            lines.append(f"| {name} | {'yes' if mlp else 'no'} | {' | '.join(cells)} |")
    return "\n".join(lines)


# ---- the figure ------------------------------------------------------------------------------------------------------

# Okabe and Ito's palette: distinct for colour-blind readers; the shape of the mark differs too.
SERIES = dict(zip(ENCODERS, ("#999999", "#0072B2", "#56B4E9", "#D55E00", "#009E73"), strict=True))
CORNERS = {  # of each encoder's mark, around (0, 0); none: a circle
    "mean": ((-4, -4), (4, -4), (4, 4), (-4, 4)),
    "attention (query)": (),
    "attention (bottleneck)": ((0, -6), (6, 0), (0, 6), (-6, 0)),
    "mini-transformer": ((0, -6), (5, 4), (-5, 4)),
    "flat": ((-6, -2), (6, -2), (6, 2), (-6, 2)),
}
PANEL_WIDE, PANEL_HIGH, LOW_SHARE, TOP_SHARE = 152, 150, -0.25, 1.4
TITLES = {
    "chronic": "chronic (additive)", "lab": "last lab value", "gap": "short gap", "decay": "fading event",
    "pair": "pair in a visit", "order": "order of visits", "gain": "gain in NLL",
}  # fmt: skip


def figure(rows: list[Row], pair_rows: list[Row]) -> str:
    """Both experiments as SVG: above, share learned by sample size; below, pairs by what stands behind the pooling."""
    subjects = pair_rows[0]["subjects"]
    parts = [
        words(20, 28, "Share learned of each mechanism, by subjects (1: all of it)", bold=True)
    ]
    sizes = sorted({row["subjects"] for row in rows})
    for number, name in enumerate((*MECHANISMS, "gain")):
        parts += panel(54 + number % 4 * 216, 70 + number // 4 * 210, name, rows, sizes)
    for number, encoder in enumerate(ENCODERS):
        x, y = 54 + 3 * 216, 292 + 24 * number
        parts += [mark(encoder, x, y), words(x + 14, y + 5, encoder)]
    parts += [
        words(
            20,
            490,
            f"Share learned of pairs alone, {subjects:,} subjects, by what reads the visit",
            bold=True,
        )
    ]
    for number, reader in enumerate(READERS):
        parts += pairs_panel(190 + number * 235, 530, reader, pair_rows, names=number == 0)
    parts += [
        words(
            20,
            694,
            "Filled: with the residual MLP (visit_mlp); hollow: without. Lines: 95 % intervals over subjects.",
            fill=GREY,
        )
    ]
    title = "What each encoder learns of each simulated mechanism"
    head = (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 920 710" width="920" height="710" role="img" '
        f'aria-label="{title}" font-family="Helvetica, Arial, \'Liberation Sans\', sans-serif">'
    )
    ground = f'<title>{title}</title>\n<rect width="920" height="710" rx="10" fill="#ffffff"/>'
    return "\n".join([head, ground, *parts, "</svg>"]) + "\n"


def panel(x: float, y: float, name: str, rows: list[Row], sizes: list[int]) -> list[str]:
    """One mechanism, or the gain: a line an encoder over the sample sizes."""
    parts = [words(x + PANEL_WIDE / 2, y - 10, TITLES[name], anchor="middle")]
    for tick in (0.0, 0.5, 1.0):
        at = height(y, tick)
        parts += [
            segment(x, at, x + PANEL_WIDE, at, PALE),
            words(x - 6, at + 4, f"{tick:g}", size=12, anchor="end"),
        ]
    places = {
        size: x + 16 + (PANEL_WIDE - 32) * i / max(1, len(sizes) - 1)
        for i, size in enumerate(sizes)
    }
    for size, at in places.items():
        parts.append(
            words(
                at,
                y + PANEL_HIGH + 16,
                f"{size // 1000}k" if size >= 1000 else str(size),
                size=12,
                anchor="middle",
            )
        )
    for encoder, color in SERIES.items():
        own = [runs for runs in cells_of(rows) if runs[0]["encoder"] == encoder]
        line = " ".join(
            f"{places[runs[0]['subjects']]:g},{height(y, mean_of(runs, name)):.1f}" for runs in own
        )
        parts.append(f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="1.8"/>')
        parts += [
            mark(encoder, places[row["subjects"]], height(y, learned(row, name)))
            for runs in own
            for row in runs
        ]
    return parts


def pairs_panel(x: float, y: float, reader: str, rows: list[Row], *, names: bool) -> list[str]:
    """One reader: the share of the pairs that each encoder lets it learn, with its interval."""
    wide, step = 190, 30
    parts = [words(x + wide / 2, y - 14, reader, anchor="middle")]
    for tick in (0.0, 0.5, 1.0):
        at = x + wide * clipped(tick) / TOP_SHARE
        parts += [segment(at, y, at, y + step * len(POOLING), PALE)]
        parts.append(words(at, y + step * len(POOLING) + 15, f"{tick:g}", size=12, anchor="middle"))
    for number, encoder in enumerate(POOLING):
        at = y + step * (number + 0.5)
        if names:
            parts.append(words(x - 16, at + 5, encoder, anchor="end"))
        for row in rows:
            if row["encoder"] == encoder and row["reader"] == reader:
                share, half = row["shares"]["pair"], 1.96 * row["share_se"]["pair"]
                here = at + (-6 if row["mlp"] else 6)
                ends = [x + wide * clipped(share + sign * half) / TOP_SHARE for sign in (-1, 1)]
                parts.append(segment(ends[0], here, ends[1], here, SERIES[encoder]))
                parts.append(
                    mark(
                        encoder, x + wide * clipped(share) / TOP_SHARE, here, hollow=not row["mlp"]
                    )
                )
    return parts


def clipped(share: float) -> float:
    """A share inside the panel."""
    return min(max(share, LOW_SHARE), TOP_SHARE)


def height(y: float, share: float) -> float:
    """Where a share stands in a panel that begins at y."""
    return y + PANEL_HIGH * (1 - (clipped(share) - LOW_SHARE) / (TOP_SHARE - LOW_SHARE))


def words(x: float, y: float, text: str, *, size: int = 14, anchor: str = "start", bold: bool = False,
          fill: str = INK) -> str:  # fmt: skip
    """One line of text."""
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}" fill="{fill}"{weight}>{text}</text>'


def segment(x1: float, y1: float, x2: float, y2: float, color: str) -> str:
    """A straight line."""
    return f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{color}" stroke-width="1.5"/>'


def mark(encoder: str, x: float, y: float, *, hollow: bool = False) -> str:
    """An encoder's mark."""
    style = f'fill="{"#ffffff" if hollow else SERIES[encoder]}" stroke="{SERIES[encoder]}" stroke-width="1.5"'
    if not CORNERS[encoder]:
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" {style}/>'
    points = " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in CORNERS[encoder])
    return f'<polygon points="{points}" {style}/>'


# ---- the two experiments ---------------------------------------------------------------------------------------------


def mechanisms(
    out: Path, sizes: tuple[int, ...], more: tuple[str, ...], *, seeds: int
) -> list[Row]:
    """All architectures on growing samples of the world of six mechanisms."""
    worlds = prepared_world(out, "mixed", MIXED, sizes)
    found = []
    for size in sizes:
        for seed in range(seeds):
            for name, settings in ENCODERS.items():
                if name == "flat" and size > FLAT_UP_TO:
                    continue
                folder = out / f"mixed-{size}-{slug(name)}{f'-seed-{seed}' if seed else ''}"
                row = result(folder, worlds[size], (*settings, f"training.seed={seed}", *more))
                found.append({"encoder": name, "subjects": size, "seed": seed} | row)
    return found


def pairs(out: Path, size: int, more: tuple[str, ...]) -> list[Row]:
    """Visit encoders with and without the residual MLP, before three readers, in the world of pairs."""
    prepared, found = prepared_world(out, "pairs", PAIRS, (size,))[size], []
    for reader, behind in READERS.items():
        for name in POOLING:
            for mlp in (False, True):
                folder = out / f"pairs-{slug(name)}-{'mlp' if mlp else 'no-mlp'}-{slug(reader)}"
                settings = (*ENCODERS[name], *behind, f"model.visit_mlp={str(mlp).lower()}", *more)
                row = result(folder, prepared, settings, linear="model.wide_head=true" in behind)
                found.append(
                    {"encoder": name, "mlp": mlp, "reader": reader, "subjects": size} | row
                )
    return found


def slug(name: str) -> str:
    """A name fit for a folder."""
    return "-".join("".join(c if c.isalnum() else " " for c in name).split())


def main() -> None:
    """Run what is not there yet; print, write, draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument(
        "--quick", action="store_true", help="a smoke test: few subjects, two epochs"
    )
    parser.add_argument("--seeds", type=int, default=1, help="of the first experiment's runs")
    parser.add_argument("--figure", type=Path, help="where to draw; default: OUT/encoders.svg")
    arguments = parser.parse_args()
    out: Path = arguments.out / "quick" if arguments.quick else arguments.out
    out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)  # so small a model gains little from a second one
    sizes, size = ((150, 300, 600), 300) if arguments.quick else (SIZES, PAIRS_SIZE)
    more = ("training.epochs=2",) if arguments.quick else ()
    found = {
        "mechanisms": mechanisms(out, sizes, more, seeds=arguments.seeds),
        "pairs": pairs(out, size, more),
    }
    (out / "encoders.json").write_text(json.dumps(found, indent=1) + "\n")
    print(mechanism_table(found["mechanisms"]), pairs_table(found["pairs"]), sep="\n\n")
    (arguments.figure or out / "encoders.svg").write_text(
        figure(found["mechanisms"], found["pairs"])
    )


if __name__ == "__main__":
    main()
