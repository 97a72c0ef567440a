"""What all settings share: frozen, typed, strict about names; durations and lists as people write them; parts."""

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from importlib import import_module
from typing import Annotated, Any, TypeVar
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.text import parse_days

Days = Annotated[float, BeforeValidator(parse_days)]


class Settings(BaseModel):
    """Base of every section: immutable, and strict about names."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", protected_namespaces=(), allow_inf_nan=False
    )


SettingsT = TypeVar("SettingsT", bound=BaseModel)


def as_list(value: object) -> object:
    """One text as a list of one."""
    return [value] if isinstance(value, str) else value


CodeList = Annotated[tuple[str, ...], BeforeValidator(as_list), Field(min_length=1)]


def check_zone(name: str) -> str:
    """Refuse what is no time zone, and return the name."""
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise ValueError(f"{name!r} is no time zone such as Europe/Berlin or UTC") from error
    return name


TimeZone = Annotated[str, AfterValidator(check_zone)]


def check_date(text: str | None) -> None:
    """Refuse what is no ISO date, or no day of the calendar."""
    if text is None:
        return
    try:
        if re.fullmatch(r"\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}(:\d{2})?)?", text, re.ASCII) is None:
            raise ValueError
        datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is not an ISO date such as 2015-01-01") from None


# ---- visit encoders by name ------------------------------------------------------------------------------------------


Class = TypeVar("Class", bound=type)


class Kind:
    """All classes that one setting chooses from; used as a decorator, it adds one.

    Example:
        >>> encoders = Kind("visit_encoder")
        >>> @encoders("first")
        ... class FirstCode: ...
        >>> encoders.class_of("first").__name__
        'FirstCode'
    """

    def __init__(self, setting: str, modules: Mapping[str, str] | None = None) -> None:
        self.setting = setting
        self.modules = dict(modules or {})  # name → module of every part of this package
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

    def checked(self, name: str) -> str:
        """The name of a part.

        Raises:
            ValueError: There is none of that name.
        """
        names = {**self.modules, **self._classes}  # of this package, then those declared elsewhere
        if name not in names:
            known = ", ".join(names)
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


visit_encoder = Kind(
    "visit_encoder",
    dict.fromkeys(
        ("attention", "bottleneck", "mean", "sum", "scaled_sum", "max", "transformer"),
        "ehrsequencing.models.visit_encoder",
    ),
)
