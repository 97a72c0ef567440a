"""What a result was made of: a digest of each part, written and compared here and nowhere else.

Parts are records, a task, settings, a run, a split. The version of the package is none: it stands beside a result and
is not compared. Files that may be shared carry one digest of all these digests, which tells nothing of a part.
"""

from collections.abc import Mapping

from ehrsequencing.core.files import digest

FORMULAS = 3  # raise it when the same parts give other models or numbers: results of before then count no more


def made_of(**parts: object) -> dict[str, str]:
    """Part → digest. Of settings, each has its own: `training={"epochs": 3}` becomes `training.epochs`.

    >>> list(made_of(split="train", training={"epochs": 3, "seed": 0}))
    ['formulas', 'split', 'training.epochs', 'training.seed']
    """
    digests = {"formulas": digest(FORMULAS)}
    for name, part in parts.items():
        if isinstance(part, Mapping):
            digests |= {f"{name}.{key}": digest(value) for key, value in part.items()}
        else:
            digests[name] = digest(part)
    return digests


def differing(made: Mapping[str, str], noted: object) -> list[str]:
    """The parts that another result, by its note, was not made of."""
    known = noted if isinstance(noted, Mapping) else {}
    return [name for name, own in made.items() if known.get(name) != own]
