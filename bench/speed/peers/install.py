"""Environments of the peers, beside this file: `python bench/speed/peers/install.py [NAME …]`.

Each peer lives in a `.venv-NAME` of its own, made with the running interpreter and holding the torch that
`constraints.txt` pins, so that one torch serves the peers and us: a peer's package comes without its dependencies, and
those come by name, in the ranges that the peer itself asks for, save torch. Nothing here is a dependency of ours.
"""

import argparse
import re
import shutil
import subprocess
import sys
import venv
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

HERE = Path(__file__).parent
CONSTRAINTS = HERE.parents[2] / "constraints.txt"


@dataclass(frozen=True)
class Peer:
    """What one environment holds.

    Attributes:
        package: The peer, pinned.
        without_dependencies: Also installed as they are: what would bring another torch along.
        dependencies: The peer's own, but for torch, and but for those that nothing measured here imports.
        check: Python that must run once all is there.
        flags: Of `pip install` for the package.
    """

    package: str
    dependencies: tuple[str, ...]
    check: str
    without_dependencies: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()


PEERS = {
    "pyhealth": Peer(
        package="pyhealth==2.1.0",
        # Its metadata asks for Python 3.12, its code runs on 3.11, for which the tested torch is at hand.
        flags=("--ignore-requires-python",),
        # PyPI's torchvision is compiled against torch's CUDA build: see `pyhealth_step.import_pyhealth`.
        without_dependencies=("torchvision==0.28.0",),
        dependencies=(
            "accelerate",
            "dask[dataframe,distributed]>=2026.1.0",
            "einops>=0.8.0",
            "litdata<0.2.68,>=0.2.64",
            "mne~=1.10.0",
            "more-itertools~=10.8.0",
            "narwhals<3,>=2.13",
            "networkx",
            "numpy<3,>=2.1",
            "orjson~=3.10",
            "pandas<3,>=2.2",
            "peft",
            "pillow",
            "platformdirs",
            "polars~=1.35.2",
            "pyarrow>=23.0.1",
            "pydantic<3,>=2.11",
            "rdkit",
            "requests",
            "scikit-learn<2,>=1.6",
            "tqdm",
            "transformers>=4.53.2",
        ),
        check="import pyhealth_step; pyhealth_step.import_pyhealth()",
    ),
    "meds_torch_data": Peer(
        package="meds-torch-data==0.9.0",
        dependencies=(
            "polars<2,>=1.30",
            "nested_ragged_tensors<0.4,>=0.3",
            "numpy<3,>=1.26",
            "meds<0.5,>=0.4",
            "MEDS_transforms<0.7,>=0.6.7",
            "hydra-core>=1.3",
            "omegaconf>=2.3",
            "meds_testing_helpers<0.4,>=0.3",
            "yaml_to_disk[parquet]",
            "pytest",
        ),
        check="import meds_torchdata",
    ),
}


def python_of(name: str) -> Path:
    """The interpreter of a peer's environment."""
    return HERE / f".venv-{name}" / "bin" / "python"


def torch_pin() -> str:
    """`torch==…` of the tested versions."""
    found = re.search(r"^torch==\S+", CONSTRAINTS.read_text(), re.MULTILINE)
    if found is None:
        raise SystemExit(f"{CONSTRAINTS} pins no torch")
    return found[0]


def install(name: str) -> None:
    """Make one environment from nothing and try it."""
    peer, python, pin = PEERS[name], python_of(name), torch_pin()
    folder = python.parents[1]
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=True)
    (folder / ".gitignore").write_text("*\n")

    def pip(*words: str) -> None:
        command = [
            str(python),
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            *words,
        ]
        subprocess.run(command, check=True)

    pip(pin)
    pip("--no-deps", *peer.flags, peer.package)
    if peer.without_dependencies:
        pip("--no-deps", *peer.without_dependencies)
    pip(pin, *peer.dependencies)  # the pin again: no dependency may bring another torch
    subprocess.run([str(python), "-c", peer.check], check=True, cwd=HERE, stdout=subprocess.DEVNULL)
    versions = installed(name)
    print(
        f"{name}: {peer.package}, torch {versions['torch']}, {len(versions)} packages in {folder}"
    )
    if versions["torch"].split("+")[0] != pin.removeprefix("torch=="):
        raise SystemExit(f"{name}: torch {versions['torch']} is not the tested {pin}")


def installed(name: str) -> dict[str, str]:
    """Versions of what an environment holds; empty where there is none."""
    folders = [str(path) for path in python_of(name).parents[1].glob("lib/python*/site-packages")]
    return {found.name.lower(): found.version for found in metadata.distributions(path=folders)}


def main() -> None:
    """Make the named environments, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(PEERS)}; default all")
    names = parser.parse_args().names or list(PEERS)
    for name in names:
        if name not in PEERS:
            parser.error(f"{name} is none of {', '.join(PEERS)}")
        try:
            install(name)
        except subprocess.CalledProcessError as error:
            sys.exit(f"{name} cannot be installed: {error}")


if __name__ == "__main__":
    main()
