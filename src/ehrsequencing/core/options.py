"""The arguments of commands and functions: a record each, by one name for both doors.

`ehrseq evaluate --split tuning` and `eh.evaluate(run, split="tuning")` are one argument. A command of the command line
is made of its table (`cli/console.py`), and a public function that is called holds its arguments against the same table
(`core/elsewhere.py`). Nothing heavy is imported here, so that `ehrseq --help` stays fast.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ehrsequencing.core.errors import EhrseqError


@dataclass(frozen=True)
class Option:
    """One argument of a function, and option of its command.

    Attributes:
        type: Of its value; a list may be given several times on the command line.
        help: What it says there, with its unit.
        default: None: it may be left out; `...`: it is needed.
        choices: The values that it has; none: any.
        least: The smallest number.
        most: The largest number.
        names: How the command line spells it; default: by its name.
        variable: Of the environment, which may hold it.
        is_word: Whether it stands on the command line by its place.
        is_rare: Whether `--help` leaves it out; `--help-all` has all.
    """

    type: Any
    help: str
    default: Any = None
    choices: tuple[str, ...] = ()
    least: float | None = None
    most: float | None = None
    names: tuple[str, ...] = ()
    variable: str | None = None
    is_word: bool = False
    is_rare: bool = False

    def check(self, value: Any, where: str) -> None:
        """Refuse a value that is none of this option; None is left out.

        Raises:
            EhrseqError: It is no choice, or too small.
        """
        if value is not None and self.choices and value not in self.choices:
            fix = f"use {', '.join(self.choices[:-1])} or {self.choices[-1]}"
            raise EhrseqError(f"{value!r} is not a choice", where=where, fix=fix)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and self.least is not None and value < self.least:
            raise EhrseqError(f"is {value}", where=where, fix=f"use {self.least:g} or more")


SPLITS = ("train", "tuning", "held_out")
CONFIG = Option(Path, "Study file (YAML) with any of the sections")
DATA = Option(Path, "Folder of a MEDS data set", ..., is_word=True)
FORCE = Option(bool, "Go on even if nearly all codes are unknown", False)
JOURNAL = Option(Path, "Folder in which each night's predictions are kept for monitor")
KEY = Option(Path, "Key of the journal; default: JOURNAL.key beside it")
MOVED_RECORDS = Option(Path, "The MEDS records, if they have moved")
MOVED_SET = Option(Path, "The prepared set, if it has moved")
NEW_FOLDER = Option(Path, "Folder to make", ...)
OVERWRITE = Option(
    bool,
    "Replace an earlier output of this command (a folder: if nobody has changed it)",
    False,
)
PREPARED = Option(Path, "What ehrseq prepare made", ..., is_word=True)
RESUME = Option(bool, "Continue after an interruption", False)
RUN = Option(Path, "What ehrseq train made", ..., is_word=True)
SPLIT = Option(str, "train, tuning or held_out", "held_out", choices=SPLITS, is_rare=True)
TASKS = Option(list[Path], "Task file; may be repeated")


def settings(example: str) -> Option:
    """The settings that a command takes beside its options."""
    return Option(list[str], f"Settings, as in {example}", is_word=True)


# of every command
SHARED = {
    "quiet": Option(bool, "Print warnings and errors only", False, names=("--quiet", "-q")),
    "as_json": Option(
        bool, "Print one JSON object on stdout, nothing else", False, names=("--json",)
    ),
    "log": Option(Path, "Add what is printed to this file, with time and level"),
    "debug": Option(bool, "Show the traceback of an error", False, is_rare=True),
    "help_all": Option(bool, "Show all options and exit", False),
}
OPTIONS: dict[str, dict[str, Option]] = {
    "demo": {
        "out": Option(Path, "Folder to make", Path("demo")),
        "subjects": Option(int, "Simulated subjects", 3000, least=1),
        "seed": Option(int, "Seed of simulation and training", 0, least=0),
    },
    "run": {
        "data": DATA,
        "overrides": settings("model.size=small"),
        "task": TASKS,
        "out": Option(Path, "Folder to make", ...),
        "quick": Option(bool, "Trees and Cox alone, in a fraction of the time", False),
        "overwrite": OVERWRITE,
        "config": CONFIG,
    },
    "simulate": {
        "out": Option(Path, "Folder to make", ..., is_word=True),
        "overrides": settings("pairs=12"),
        "subjects": Option(int, "How many subjects", 4000, least=1),
        "seed": Option(int, "Seed", 0, least=0),
        "overwrite": OVERWRITE,
        "truth": Option(
            str,
            "Whose truth to compute: held_out or all",
            "held_out",
            choices=("held_out", "all"),
        ),
        "config": Option(Path, "YAML file with settings of the simulator"),
    },
    "import": {
        "source": Option(str, "What to read", ..., is_word=True),
        "out": Option(Path, "Folder to make", is_word=True),
        "overrides": Option(
            list[str], "Settings as import.key=value, as in import.dates=dmy", is_word=True
        ),
        "map": Option(Path, "YAML file that says what the columns mean"),
        "draft": Option(
            bool, "Write a map to edit for these files (SOURCE and all that follow)", False
        ),
        "named": Option(Path, "The same as OUT", names=("--out",), is_rare=True),
        "overwrite": OVERWRITE,
    },
    "codes": {
        "data": DATA,
        "text": Option(
            str, "Words, or a pattern as in ICD10CM//E11*; default: all codes", "", is_word=True
        ),
        "overrides": settings("data.extracted=2026-03-01"),
        "top": Option(int, "How many codes to print; --json has all", 10, least=1),
        "config": CONFIG,
    },
    "check": {
        "data": DATA,
        "overrides": settings("visits.by=day"),
        "task": TASKS,
        "out": Option(
            Path,
            "Also write what was found to this file (JSON); with --suggest, a folder for task files",
        ),
        "suggest": Option(bool, "Instead, show which task templates fit the codes", False),
        "overwrite": OVERWRITE,
        "config": CONFIG,
    },
    "prepare": {
        "data": DATA,
        "overrides": settings("visits.by=day"),
        "out": NEW_FOLDER,
        "task": TASKS,
        "overwrite": OVERWRITE,
        "engine": Option(
            str,
            "Where shards are worked on: a Dask cluster, dask://HOST:PORT",
            "processes",
            is_rare=True,
        ),
        "config": CONFIG,
    },
    "pretrain": {
        "prepared": PREPARED,
        "overrides": settings("model.size=small"),
        "out": Option(Path, "Folder of the pretrained model", ...),
        "task": Option(
            str, "Task whose outcomes, their relatives and near-synonyms are no targets"
        ),
        "resume": RESUME,
        "overwrite": OVERWRITE,
        "config": CONFIG,
    },
    "train": {
        "prepared": PREPARED,
        "overrides": settings("model.size=small"),
        "task": Option(str, "Name of the task; the only one by default"),
        "out": Option(Path, "Folder of the run", ...),
        "init": Option(
            Path,
            "Start from this model of ehrseq pretrain or ehrseq train, as transfer.mode says",
        ),
        "resume": RESUME,
        "overwrite": OVERWRITE,
        "config": CONFIG,
    },
    "evaluate": {
        "run": RUN,
        "overrides": settings("evaluation.bootstrap=1000"),
        "split": Option(str, "train, tuning or [held_out]", choices=SPLITS, is_rare=True),
        "prepared": MOVED_SET,
        "baselines": Option(str, "fast or none"),
        "data": Option(
            Path, "Other MEDS data: external validation. With --splits: the records, if moved"
        ),
        "out": Option(Path, "With --data: folder to make [RUN/external-NAME]"),
        "overwrite": OVERWRITE,
        "splits": Option(int, "Also train and evaluate on this many random 80/20 splits"),
        "split_seed": Option(int, "Seed of the first of the --splits [1234]", is_rare=True),
        "walk": Option(
            str,
            "date: also train before, and test in, windows of index dates; site: leave out one at a time",
            choices=("date", "site"),
        ),
        "redraw": Option(bool, "Only draw the report of the last evaluation again", False),
        "config": CONFIG,
    },
    "drift": {
        "run": RUN,
        "data": DATA,
        "overrides": settings("data.extracted=2026-03-01"),
        "config": CONFIG,
    },
    "predict": {
        "run": RUN,
        "data": DATA,
        "overrides": settings("data.extracted=2026-03-01"),
        "out": Option(
            Path, "File to write: .parquet, .csv or .csv.gz", Path("predictions.parquet")
        ),
        "at": Option(str, "all, last, index (each person's newest), every-index, or a date", "all"),
        "since": Option(
            str,
            "Only people whose index is so recent: 14d before the data's end or the date of --at, or a date",
            names=("--since", "--within"),
        ),
        "horizons": Option(str, "As in 90d,2y; default: the task's"),
        "outcome": Option(
            list[str],
            "A code or pattern of the run's outcomes (docs/outcomes.md); may be repeated",
        ),
        "top": Option(int, "So many most likely outcomes of each moment"),
        "threshold": Option(
            float, "Count who lies above this risk; default: the run's 90th percentile"
        ),
        "strict": Option(
            bool,
            "No list, and exit code 4, where the people differ too much or cannot be compared",
            False,
        ),
        "journal": JOURNAL,
        "key": KEY,
        "force": FORCE,
        "overwrite": OVERWRITE,
        "config": CONFIG,
    },
    "monitor": {
        "run": RUN,
        "data": DATA,
        "overrides": settings("data.extracted=2026-03-01"),
        "journal": JOURNAL,
        "key": KEY,
        "by": Option(list[str], "Also watch people with this code, or pattern; may be repeated"),
        "lag": Option(str, "After it an event has been recorded", "7d"),
        "out": Option(Path, "Page to write, for its owner only", Path("monitor.html")),
        "metrics": Option(Path, "File to write in Prometheus' text format"),
        "overwrite": OVERWRITE,
        "config": CONFIG,
    },
    "explain": {
        "run": RUN,
        "data": DATA,
        "overrides": settings("data.extracted=2026-03-01"),
        "subject": Option(int, "A subject_id; default: the whole cohort"),
        "horizon": Option(str, "As in 1y; default: the main one"),
        "cause": Option(str, "Default: the task's first outcome"),
        "out": Option(Path, "File for the whole table: .parquet or .csv"),
        "overwrite": OVERWRITE,
        "subjects": Option(int, "Subjects of the cohort at most [1000]", least=1, is_rare=True),
        "config": CONFIG,
    },
    "explore": {
        "run": RUN,
        "data": DATA,
        "overrides": settings("data.extracted=2026-03-01"),
        "out": Option(Path, "File to write", Path("explorer.html")),
        "overwrite": OVERWRITE,
        "subjects": Option(int, "At most so many, drawn at random", 10_000, least=1, is_rare=True),
        "fewest": Option(
            int,
            "Codes that fewer patients have are shown as one, 'rare code'",
            11,
            least=1,
            is_rare=True,
        ),
        "what_if": Option(
            bool,
            "Strike each code and each visit in advance",
            True,
            names=("--what-if/--no-what-if",),
            is_rare=True,
        ),
        "megabytes": Option(
            float,
            "Above it, what-if answers are those of the latest prediction only [15]",
            least=0.1,
            is_rare=True,
        ),
        "force": FORCE,
        "config": CONFIG,
    },
    "audit": {
        "run": RUN,
        "split": Option(
            str,
            "Split whose subjects the model is tested on",
            "held_out",
            choices=SPLITS,
            is_rare=True,
        ),
        "subjects": Option(int, "How many subjects of each split to sample", 200),
        "seed": Option(int, "Seed of the sample", 0, is_rare=True),
        "allow": Option(list[str], "CODE=REASON: this code may say so much; may be repeated"),
        "prepared": MOVED_SET,
        "data": MOVED_RECORDS,
    },
    "update": {
        "run": RUN,
        "data": DATA,
        "task": Option(Path, "The run's question by the codes of DATA; default: its own"),
        "out": Option(Path, "Folder of the new run", ...),
        "overwrite": OVERWRITE,
    },
    "compare": {
        "runs": Option(
            list[Path],
            "Two runs or more; with --pool: the metrics.json of each site; with --ablate: a prepared set",
            ...,
            is_word=True,
        ),
        "split": Option(str, "train, tuning or [held_out]", choices=SPLITS, is_rare=True),
        "bootstrap": Option(int, "Resamples of subjects [500]", is_rare=True),
        "pool": Option(bool, "Instead, pool one run's evaluations at several sites", False),
        "ablate": Option(str, "Instead, train networks that differ in SETTING=ONE,OTHER"),
        "task": Option(str, "With --ablate: task of the prepared set"),
        "seeds": Option(int, "With --ablate: trainings a value [5]", least=2),
        "out": Option(Path, "With --pool or --ablate: folder to make"),
        "overwrite": OVERWRITE,
    },
    "serve": {
        "run": RUN,
        "data": Option(Path, "Folder of a MEDS data set, for the explorer's page", is_word=True),
        "host": Option(str, "Address to listen on", "127.0.0.1"),
        "port": Option(int, "Port to listen on; 0: any free one", 8000),
        "token": Option(
            str, "What clients must send; needed beyond this machine", variable="EHRSEQ_TOKEN"
        ),
        "allow_host": Option(
            list[str],
            "Another host name of this server, as behind a proxy; may be repeated",
            is_rare=True,
        ),
        "stale": Option(str, "A card gives no risk where the newest row is older", "1y"),
        "max_body": Option(int, "Largest request, in MiB", 16, least=1, most=1024, is_rare=True),
        "max_rows": Option(
            int, "Most rows of a record, and half the JSON objects", 20_000, least=1, is_rare=True
        ),
        "max_visits": Option(int, "Most visits of a record", 5_000, least=1, is_rare=True),
        "page": Option(
            bool, "Show DATA in the explorer", True, names=("--page/--no-page",), is_rare=True
        ),
        "what_if": Option(
            bool,
            "Compute the risk without each code and each visit",
            True,
            names=("--what-if/--no-what-if",),
            is_rare=True,
        ),
        "force": FORCE,
        "timeout": Option(
            float, "Longest wait for an answer, in seconds", 30.0, least=0.1, is_rare=True
        ),
    },
    "export": {
        "run": RUN,
        "data": Option(Path, "meds-dev: folder of a MEDS data set, seen or not", is_word=True),
        "out": Option(Path, "Folder or file to make", ...),
        "overwrite": OVERWRITE,
        "format": Option(
            str,
            "share: a folder for others; meds-dev: a risk for each of --labels (docs/scale.md)",
            "share",
            choices=("share", "meds-dev"),
        ),
        "labels": Option(Path, "meds-dev: MEDS labels, a file or a folder"),
        "cause": Option(str, "meds-dev: which cause [the first]"),
        "horizon": Option(str, "meds-dev: as in 90d [the task's only one]"),
        "license": Option(str, "share: the licence that the model card names, as in cc-by-nc-4.0"),
    },
    "score": {
        "predictions": Option(
            Path, "Risks of any model: .parquet, .csv or .csv.gz", ..., is_word=True
        ),
        "data": DATA,
        "overrides": settings("splits.by=hash"),
        "task": Option(Path, "Task file", ...),
        "out": Option(Path, "Folder to make [NAME-score beside PREDICTIONS]"),
        "overwrite": OVERWRITE,
        "name": Option(str, "What the model is called [the file's name]"),
        "split": SPLIT,
        "prepared": Option(Path, "What ehrseq prepare made of DATA and the task, to save time"),
        "baselines": Option(str, "fast or none"),
        "config": CONFIG,
    },
}
