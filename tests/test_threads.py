"""What the command line asks of torch's threads."""

import os
import subprocess
import sys

import pytest

TELL = "import os, sys; tell = lambda *_: print(os.environ.get('GOMP_SPINCOUNT'), 'torch' in sys.modules); "


def told(script: str, **given: str) -> list[str]:
    """What a script prints, in an environment that says of waiting only what is given."""
    own = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    env = {**own, **given, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", TELL + script], env=env, capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.parametrize(
    ("given", "expected"),
    [({}, "30000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, "None")],
)
def test_what_the_environment_says_about_waiting_stays(given: dict[str, str], expected: str) -> None:
    script = "from ehrsequencing.threads import wait_briefly; wait_briefly(); tell()"
    assert told(script, **given) == [expected, "False"]


def test_the_command_line_asks_before_torch_is_there() -> None:
    """OpenMP reads it when torch is loaded."""
    assert told("import ehrsequencing.cli.app as app; app.run_app = tell; app.main()") == ["30000", "False"]
