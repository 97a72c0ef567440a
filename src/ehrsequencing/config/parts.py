"""Visit encoders and objectives of pretraining by name.

A class declares itself with a decorator, as in `@visit_encoder("mean")`, and nothing else has to know it: settings
accept its name. Settings must load without torch, so the names of this package are read from the source files of
`models/` (objectives: of `training/pretraining/`). A part of your own exists once its module is imported.
"""

import re
from collections.abc import Callable
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from ehrsequencing.core.errors import EhrseqError

Class = TypeVar("Class", bound=type)
_PACKAGE = Path(__file__).parents[1]


class Kind:
    """All classes that one setting chooses from; used as a decorator, it adds one.

    Example:
        >>> encoders = Kind("visit_encoder")
        >>> @encoders("first")
        ... class FirstCode: ...
        >>> encoders.class_of("first").__name__
        'FirstCode'
    """

    def __init__(self, setting: str, folder: str = "models") -> None:
        self.setting, self.folder = setting, folder
        self._classes: dict[str, Any] = {}

    def __call__(self, name: str) -> Callable[[Class], Class]:
        """Declare a class by its name in the settings.

        Raises:
            EhrseqError: This package has a part of that name already.
        """

        def declare(cls: Class) -> Class:
            if self.modules.get(name, cls.__module__) != cls.__module__:
                raise EhrseqError(
                    "is the name of another part",
                    where=f"@{self.setting}({name!r})",
                    fix="choose another name",
                )
            self._classes[name] = cls
            return cls

        return declare

    @cached_property
    def modules(self) -> dict[str, str]:
        """Name → module of every part of this package."""
        found: dict[str, str] = {}
        for path in sorted((_PACKAGE / self.folder).glob("*.py")):
            module = f"ehrsequencing.{self.folder}.{path.stem}".replace("/", ".")
            text = path.read_text(encoding="utf-8")
            found |= dict.fromkeys(re.findall(rf'^@{self.setting}\("(\w+)"', text, re.M), module)
        return found

    @property
    def names(self) -> list[str]:
        """Names of all parts: those of this package, then those declared elsewhere."""
        return list({**self.modules, **self._classes})

    def checked(self, name: str) -> str:
        """The name of a part.

        Raises:
            ValueError: There is none of that name.
        """
        if name not in self.names:
            known = ", ".join(self.names)
            fix = "if it is your own, import its module first"
            raise ValueError(f"{name!r} is not one of {known}; {fix}")
        return name

    def class_of(self, name: str) -> Any:
        """The class of that name; its module is imported if it is one of this package.

        Raises:
            EhrseqError: No module declares it.
        """
        if name in self.modules:
            import_module(self.modules[name])
        if name not in self._classes:
            raise EhrseqError(
                "has no class",
                where=f"{self.setting}={name}",
                fix="import the module that declares it",
            )
        return self._classes[name]

    def is_own(self, name: str) -> bool:
        """Whether a part is declared outside of this package."""
        return name not in self.modules


visit_encoder = Kind("visit_encoder")
objective = Kind("objective", "training/pretraining")  # what pretraining learns; no part of a model
