"""Write OUTPUT_DIR/task.yaml for the MEDS-DEV task that the folders are named after.

    python make_task.py LABELS_DIR OUTPUT_DIR

MEDS-DEV does not tell a model the name of the task. With `mode=full` it is in the output folder; with `mode=train`,
let the labels' or the output folder end in it, or set MEDS_DEV_TASK. Needs Python only.
"""

import json
import os
import sys
from pathlib import Path

TASKS = Path(__file__).resolve().parent / "tasks"


def task_names() -> list[str]:
    """MEDS-DEV's names of the tasks that have a file here, as `readmission/general_hospital/30d`."""
    return sorted(path.relative_to(TASKS).with_suffix("").as_posix() for path in TASKS.rglob("*.yaml"))


def find_task(labels_dir: Path, output_dir: Path) -> str:
    """The task whose name is in MEDS_DEV_TASK or in one of the folders."""
    named = os.environ.get("MEDS_DEV_TASK", "")
    places = [named] if named else [output_dir.resolve().as_posix(), labels_dir.resolve().as_posix()]
    for place in places:
        found = [name for name in task_names() if f"/{name}/" in f"/{place}/"]
        if len(found) == 1:
            return found[0]
    raise SystemExit(
        "No task of this entry is named by MEDS_DEV_TASK, by the output folder or by the folder of labels. "
        f"Set MEDS_DEV_TASK to one of: {', '.join(task_names())}"
    )


def main() -> None:
    """Write the task file."""
    labels_dir, output_dir = map(Path, sys.argv[1:])
    text = (TASKS / f"{find_task(labels_dir, output_dir)}.yaml").read_text(encoding="utf-8")
    output_dir.mkdir(parents=True, exist_ok=True)
    labels = json.dumps(str(labels_dir.resolve()))  # a JSON text is one of YAML
    (output_dir / "task.yaml").write_text(text.replace("LABELS", labels), encoding="utf-8")


if __name__ == "__main__":
    main()
