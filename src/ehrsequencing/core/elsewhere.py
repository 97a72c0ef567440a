"""What users of other libraries type: names and arguments that are not here, answered by the right way here.

`elsewhere.toml` is the table. It is read where a name is missing, never before.
"""

import inspect
import os
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import cache, partial, wraps
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, NoneType
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    TypeVar,
    cast,
    get_args,
    get_origin,
)

from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.options import OPTIONS

# functions of the package whose first argument is such an object: they are its methods too
METHODS = {
    "TrainedRun": ("audit", "drift", "evaluate", "export", "update"),
    "PreparedData": ("fit", "pretrain"),
}
Called = TypeVar("Called", bound=Callable[..., Any])


@cache
def _table() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def right_way(owner: str, name: str, known: Iterable[str] = ()) -> str:
    """What to use in the place of a name; empty where nothing comes close.

    >>> right_way("TrainedRun", "predict_proba")
    "run.predict(data, horizons=['1y'])"
    >>> right_way("TrainedRun", "xpredict", ["predict"]), right_way("TrainedRun", "xyz")
    ('predict', '')
    """
    # fine_gray is FineGray, and --random-state random_state
    plain = name.lower().strip("-").replace("-", "_")
    spellings = plain, plain.replace("_", "")
    for use, names in _table().get(owner, {"use": {}})["use"].items():
        if any(fnmatchcase(s, pattern) for s in spellings for pattern in names.lower().split()):
            return str(use)
    return next(iter(get_close_matches(name, list(known), n=1, cutoff=0.85)), "")


def lacks(owner: str, name: str, known: Iterable[str]) -> str:
    """That a class or a module of the table has no such name, and what to use; Python itself asks for _names."""
    use = "" if name.startswith("_") else right_way(owner, name, known)
    hint = f": use {use}" if use else ""
    what = {"[]": "no items", "len()": "no length"}.get(name, f"no attribute {name!r}")
    return f"{_table()[owner]['called']} has {what}{hint}"


def missing_name(module: str, name: str, known: Iterable[str]) -> Exception:
    """The error of a name that a module has not, for its `__getattr__`.

    Of an `AttributeError` in `from module import name` Python would make an error without our words.
    """
    is_import = sys._getframe(2).f_code.co_name == "_handle_fromlist"
    is_module = is_import and find_spec(f"{module}.{name}") is not None
    kind = ImportError if is_import and not is_module else AttributeError
    return kind(lacks(module, name, known))


def _owner(thing: Any) -> str:
    """The class of the table that something is of: its own, or the nearest one that it inherits from."""
    return next(cls.__name__ for cls in type(thing).__mro__ if cls.__name__ in _table())


class Hinted:
    """A class of the table, whose missing names are answered."""

    if not TYPE_CHECKING:  # a type checker finds names that are not there by itself

        def __getattr__(self, name: str) -> Any:
            if name in METHODS.get(_owner(self), ()):
                return partial(getattr(import_module("ehrsequencing"), name), self)
            # of an AttributeError in f(**self) Python would make an error without our words
            kind = EhrseqError if name == "keys" else AttributeError
            raise kind(lacks(_owner(self), name, dir(type(self))))

        def __dir__(self) -> list[str]:
            return [*super().__dir__(), *METHODS.get(_owner(self), ())]

        def __getitem__(self, key: Any) -> Any:
            raise TypeError(lacks(_owner(self), "[]", ()))

        def __len__(self) -> int:
            raise TypeError(lacks(_owner(self), "len()", ()))

        def __bool__(self) -> bool:
            return True


def answering(function: Called, name: str = "") -> Called:
    """The function, whose wrong calls are answered by the right form; `name` is what a class calls it.

    >>> def risk(data, *, horizons): ...
    >>> answering(risk)("meds/", lr=1, n_epochs=3)
    Traceback (most recent call last):
    ehrsequencing.core.errors.EhrseqError: risk: unknown arguments 'lr', 'n_epochs' (use learning_rate; epochs)
    >>> answering(risk)("meds/", ["1y"])
    Traceback (most recent call last):
    ehrsequencing.core.errors.EhrseqError: risk: too many positional arguments (write risk(data, horizons=…))
    """
    signature = inspect.signature(function)
    is_class = function.__name__ == "__init__"
    named_as = function.__qualname__.split(".")[-2] if is_class else name or function.__name__
    shown = [*signature.parameters.values()][bool(is_class or name) :]
    options = OPTIONS.get("train" if named_as == "fit" else named_as, {})

    @wraps(function)
    def call(*given: Any, **named: Any) -> Any:
        try:
            bound = signature.bind(*given, **named)
        except TypeError as error:
            # all unknown arguments at once, or how the call is written
            why, known = str(error), [one.name for one in shown]
            takes_all = any(one.kind is one.VAR_KEYWORD for one in shown)
            unknown = [one for one in named if one not in known and not takes_all]
            tables = [own for own in (named_as, "arguments") if own in _table()]
            uses = dict.fromkeys(
                next(filter(None, (right_way(own, one, known) for own in tables)), "")
                for one in unknown
            )
            fix = "; ".join(filter(None, uses))
            if unknown:
                why = f"unknown argument{'s' * (len(unknown) > 1)} {', '.join(map(repr, unknown))}"
            elif "frame" not in known and any(hasattr(one, "columns") for one in given):
                fix = "eh.from_table(df, subject=…, time=…, event=…, out=…), which makes records of a frame"
            forms = [f"{one.name}=…" if one.kind is one.KEYWORD_ONLY else one.name for one in shown]
            short = ", ".join(forms[:8] + ["…"] * (len(forms) > 8))
            fix = f"use {fix}" if fix else f"write {named_as}({short})"
            raise EhrseqError(why, where=named_as, fix=fix) from None
        for argument, value in bound.arguments.items():
            one = signature.parameters[argument]
            is_one = one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)
            is_one = is_one and not is_class  # scikit-learn: an estimator is made of anything
            if is_one and not fits(value, one.annotation):
                written = re.sub(r"\b(\w+\.)+", "", inspect.formatannotation(one.annotation))
                raise EhrseqError(
                    f"{argument} must be {written}, not {type(value).__name__}",
                    where=named_as,
                    fix="see its documentation",
                )
            if argument in options:
                options[argument].check(value, f"{named_as}, {argument}")
        return function(*given, **named)

    return cast(Called, call)


def leaves(hint: Any) -> set[Any]:
    """The types that a type is made of.

    >>> from collections.abc import Sequence
    >>> sorted(one.__name__ for one in leaves(Sequence[str | float] | None))
    ['NoneType', 'float', 'str']
    """
    inner = get_args(hint)
    if not inner or get_origin(hint) is Literal or any(isinstance(one, list) for one in inner):
        return {hint}  # the last: of a function, its arguments
    return set().union(*map(leaves, inner))


def fits(value: Any, hint: Any) -> bool:
    """Whether truths stand where truths belong, and only there, and no number or mapping where a text or a path does.

    Functions themselves refuse what else they do not take.

    >>> from collections.abc import Sequence
    >>> fits("no", bool), fits(True, float), fits([1, True], Sequence[int]), fits(1, bool), fits(None, bool | None)
    (False, False, False, False, True)
    >>> fits(1, str | os.PathLike[str]), fits(Path("run"), str | os.PathLike[str])
    (False, True)
    >>> fits({}, Mapping[str, str] | None), fits({}, str | None)
    (True, False)
    """
    kinds = leaves(hint)
    takes_mapping = any(get_origin(one) is Mapping for one in (hint, *get_args(hint)))
    if not kinds <= {bool, int, float, str, NoneType, os.PathLike} or takes_mapping:
        return True
    if isinstance(value, list | tuple):
        return bool not in kinds and all(fits(one, hint) for one in value)
    if isinstance(value, bool) or type(value).__name__ in ("bool_", "bool"):  # NumPy's too
        return bool in kinds
    if kinds <= {str, NoneType} and isinstance(
        value, int | float | Mapping
    ):  # paths are among them
        return False
    return (value is None and NoneType in kinds) or not kinds <= {bool, NoneType}


def public(module: ModuleType, name: str) -> Any:
    """A public name of a module; a function of it answers wrong calls from now on, there too, where pickle looks."""
    value = getattr(module, name)
    if inspect.isfunction(value) and not hasattr(value, "__wrapped__"):
        value = answering(value)
        setattr(module, name, value)
    return value


class Answering:
    """A class whose own public methods answer wrong calls."""

    def __init_subclass__(cls, **named: Any) -> None:
        super().__init_subclass__(**named)
        for name, value in list(vars(cls).items()):
            if inspect.isfunction(value) and (name == "__init__" or not name.startswith("_")):
                setattr(cls, name, answering(value, name))
