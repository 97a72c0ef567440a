"""Parts of a model: which names a setting can have, and which other settings each part uses.

A class declares itself with a decorator, as in `@visit_encoder("mean")`. Nothing else has to know it: settings accept
its name, and refuse settings that it does not use. Settings must load without torch, so the parts of this package are
read from the source files of `models/` (objectives: of `pretraining/`). A part of your own exists once its module is
imported.
"""

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
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
    # settings that have another default with this part
    defaults: Mapping[str, Any] = field(default_factory=dict)
    # whether its cost grows with the square of the number of codes in a visit
    relates_codes: bool = False
    has_window: bool = True  # whether a state depends on a limited number of visits before it


class Kind:
    """All parts that one setting chooses from; used as a decorator, it adds a class.

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

    def users(self) -> dict[str, str]:
        """Setting → which parts use it, as `timeline=transformer`."""
        found: dict[str, list[str]] = {}
        for name, part in self.parts.items():
            for used in part.uses:
                found.setdefault(used, []).append(f"{self.setting}={name}")
        return {used: " or ".join(parts) for used, parts in found.items()}


def declared_in(source: str, setting: str) -> Iterator[tuple[str, Part]]:
    r"""Parts of one kind that a module declares, without running it.

    >>> list(declared_in("@head('visit', uses=('causes',))\nclass Visit: ...", "head"))
    [('visit', Part(uses=('causes',), defaults={}, relates_codes=False, has_window=True))]
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


architecture, visit_encoder, timeline, head = (
    Kind(setting) for setting in ("architecture", "visit_encoder", "timeline", "head")
)
KINDS = (architecture, visit_encoder, timeline, head)
objective = Kind(
    "objective", "training/pretraining"
)  # what pretraining learns; not a part of a model


def idle_settings(values: Mapping[str, Any]) -> dict[str, str]:
    """Settings that the chosen parts do not use.

    Returns:
        Setting → which part would use it, as `timeline=transformer`.
    """
    used: set[str] = set()
    idle: dict[str, str] = {}
    for kind in KINDS:
        # of the whole kind: flat BEHRT has no visit encoder, and so none of its settings
        home = idle.get(kind.setting)
        own = () if home else kind.parts[values[kind.setting]].uses
        used |= set(own)
        idle |= {name: home or users for name, users in kind.users().items() if name not in own}
    idle = {name: home for name, home in idle.items() if name not in used}
    for home, setting, is_on, names in _SWITCHED:
        if setting in idle or not is_on(values[setting]):
            idle |= {name: home for name in names if name not in idle}
    return idle


def part_defaults(values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that have another default with the chosen parts; `values` may lack settings."""
    chosen = (kind.parts.get(str(values.get(kind.setting))) for kind in KINDS)
    return {
        name: value for part in chosen if part is not None for name, value in part.defaults.items()
    }


# Settings that have an effect only where another setting, which names no class, is on.
_SWITCHED: tuple[tuple[str, str, Callable[[Any], bool], tuple[str, ...]], ...] = (
    ("code_types=true", "code_types", bool, ("n_code_types",)),
    ("age_bin_years above 0", "age_bin_years", bool, ("age_polynomial",)),
    (
        "delta_bins=linear",
        "delta_bins",
        lambda value: bool(value == "linear"),
        ("delta_bin_days", "delta_top_days"),
    ),
)
