"""Visit encoders and objectives by name, and which settings have an effect beside the others.

A visit encoder (or an objective of pretraining) declares itself with a decorator, as in `@visit_encoder("mean")`.
Nothing else has to know it: settings accept its name, and refuse settings that it does not use. Settings must load
without torch, so the parts of this package are read from the source files of `models/` (objectives: of
`training/pretraining/`). A part of your own exists once its module is imported.
"""

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from ehrsequencing.core.errors import EhrseqError

Class = TypeVar("Class", bound=type)
_PACKAGE = Path(__file__).parents[1]


@dataclass(frozen=True)
class Part:
    """What a class declares beside its name."""

    # settings of `ModelConfig` that have an effect with this part, and not with every other one of its kind
    uses: tuple[str, ...] = ()
    # whether its cost grows with the square of the number of codes in a visit
    relates_codes: bool = False


class Kind:
    """All classes that one setting chooses from; used as a decorator, it adds one.

    Example:
        >>> encoders = Kind("visit_encoder")
        >>> @encoders("first", uses=("scorer",))
        ... class FirstCode: ...
        >>> encoders.class_of("first").__name__, encoders.parts["first"].uses
        ('FirstCode', ('scorer',))
    """

    def __init__(self, setting: str, folder: str = "models") -> None:
        self.setting, self.folder = setting, folder
        self._classes: dict[str, Any] = {}
        self._modules: dict[str, str] = {}  # of this package, that declare a part

    def __call__(self, name: str, **traits: Any) -> Callable[[Class], Class]:
        """Declare a class: its name in the settings, and its traits (fields of `Part`), all literals.

        Raises:
            EhrseqError: This package has a part of that name already.
        """

        def declare(cls: Class) -> Class:
            if name in self.parts and self._modules.get(name, cls.__module__) != cls.__module__:
                where = f"@{self.setting}({name!r})"
                raise EhrseqError(
                    "is the name of another part", where=where, fix="choose another name"
                )
            self._classes[name] = cls
            self.parts[name] = Part(**traits)
            return cls

        return declare

    @cached_property
    def parts(self) -> dict[str, Part]:
        """Name → traits of every part: those of this package, then those declared elsewhere."""
        found = {}
        for path in sorted((_PACKAGE / self.folder).glob("*.py")):
            for name, found[name] in declared_in(path.read_text(encoding="utf-8"), self.setting):
                self._modules[name] = f"ehrsequencing.{self.folder}.{path.stem}".replace("/", ".")
        return found

    def checked(self, name: str) -> str:
        """The name of a part.

        Raises:
            ValueError: There is none of that name.
        """
        if name not in self.parts:
            known = ", ".join(self.parts)
            raise ValueError(
                f"{name!r} is not one of {known}; if it is your own, import its module first"
            )
        return name

    def class_of(self, name: str) -> Any:
        """The class of that name; its module is imported if it is one of this package.

        Raises:
            EhrseqError: No module declares it.
        """
        if name in self.parts and name in self._modules:
            import_module(self._modules[name])
        if name not in self._classes:
            fix = "import the module that declares it"
            raise EhrseqError("has no class", where=f"{self.setting}={name}", fix=fix)
        return self._classes[name]

    def is_own(self, name: str) -> bool:
        """Whether a part is declared outside of this package."""
        return name in self.parts and name not in self._modules


def declared_in(source: str, setting: str) -> Iterator[tuple[str, Part]]:
    r"""Parts of one kind that a module declares, without running it.

    >>> list(declared_in("@encoder('first', uses=('scorer',))\nclass First: ...", "encoder"))
    [('first', Part(uses=('scorer',), relates_codes=False))]
    """
    if f"@{setting}(" not in source:
        return
    for node in ast.walk(ast.parse(source)):
        for call in node.decorator_list if isinstance(node, ast.ClassDef) else ():
            if (
                isinstance(call, ast.Call)
                and isinstance(call.func, ast.Name)
                and call.func.id == setting
            ):
                traits = {
                    str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords
                }
                yield ast.literal_eval(call.args[0]), Part(**traits)


visit_encoder = Kind("visit_encoder")
objective = Kind("objective", "training/pretraining")  # what pretraining learns; no part of a model


# Settings that have an effect only where another setting has a value (None: any but 0 and false), and it in words.
_CHOICES: tuple[tuple[str, str, str | None, tuple[str, ...]], ...] = (
    (
        "architecture=hierarchical",
        "architecture",
        "hierarchical",
        ("visit_encoder", "visit_mlp", "timeline", "code_position", "delta_bins"),
    ),
    ("architecture=flat", "architecture", "flat", ("max_tokens",)),
    ("head=horizon", "head", "horizon", ("causes", "edges_days")),
    ("code_types=true", "code_types", None, ("n_code_types",)),
    ("age_bin_years above 0", "age_bin_years", None, ("age_polynomial",)),
    ("table_dim above 0", "table_dim", None, ("table_dropout", "table_columns")),
    ("delta_bins=linear", "delta_bins", "linear", ("delta_bin_days", "delta_top_days")),
)


def idle_settings(values: Mapping[str, Any]) -> dict[str, str]:
    """Settings without an effect beside the others.

    Returns:
        Setting → the choice that would use it, as `visit_encoder=transformer`.
    """
    encoders = (
        (f"visit_encoder={name}", "visit_encoder", name, part.uses)
        for name, part in visit_encoder.parts.items()
    )
    used: set[str] = set()
    idle: dict[str, str] = {}
    for choice, setting, wanted, names in (*_CHOICES, *encoders):
        value = values[setting]
        is_chosen = bool(value) if wanted is None else value == wanted
        unreachable = idle.get(setting)  # flat BEHRT has no visit encoder, and none of its settings
        for name in names:
            if unreachable:
                idle[name] = unreachable
            elif is_chosen:
                used.add(name)
            else:
                idle[name] = f"{idle[name]} or {choice}" if name in idle else choice
    return {name: choice for name, choice in idle.items() if name not in used}
