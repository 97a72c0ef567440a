#!/usr/bin/env bash
# Build the wheel and try it in an empty environment outside the checkout, without constraints but torch's.
#   bash packaging/try_wheel.sh [PYTHON] [MORE PACKAGES]
# SUBJECTS=N makes a shorter demo.
set -euo pipefail
python=${1:-python3}
checkout=$(cd "$(dirname "$0")/.." && pwd)
room=$(mktemp -d)
trap 'rm -rf "$room"' EXIT

"$python" -m venv "$room/build"
"$room/build/bin/python" -m pip install --quiet --disable-pip-version-check build
"$room/build/bin/python" -m build --quiet --outdir "$room/dist" "$checkout"
ls -l "$room/dist"

"$python" -m venv "$room/env"
cd "$room"  # nothing of the checkout may be found
pip=(env/bin/python -m pip install --quiet --disable-pip-version-check)
"${pip[@]}" torch --index-url https://download.pytorch.org/whl/cpu || "${pip[@]}" torch
"${pip[@]}" dist/*.whl
env/bin/ehrseq --version
env/bin/python - <<'PYTHON'
from importlib.metadata import metadata
from importlib.resources import files

import ehrsequencing

root = files("ehrsequencing")
assert "site-packages" in str(root), root
needed = {
    "config/templates": ["readmission.yaml"],
    "reporting/templates": ["answer.html.jinja", "search.js"],
    "reporting/templates/sections": ["summary.html.jinja"],
    "explorer/templates": ["main.js", "explorer.html.jinja"],
}
for folder, names in needed.items():
    for name in names:
        assert (root / folder / name).is_file(), f"{folder}/{name} is not in the wheel"
assert (root / "py.typed").is_file()
facts = metadata("ehrsequencing")
assert facts["Version"] == ehrsequencing.__version__
assert facts["License-Expression"] == "MIT"
PYTHON
env/bin/ehrseq demo --out demo ${SUBJECTS:+--subjects "$SUBJECTS"}
test -s demo/run/report.html
echo "the wheel works with $(env/bin/python --version)"
