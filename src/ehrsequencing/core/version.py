"""The version of the package, and what an output notes of the software that made it."""

from importlib import metadata

__version__ = "2.0.0"


def versions() -> dict[str, str]:
    """Library → version, without importing any."""
    return {"ehrsequencing": __version__, "torch": metadata.version("torch")}
