"""Parts of strategies as values: nodes cannot share a part that has state, so a strategy holds a factory for it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, ParamSpec, TypeVar

__all__ = ["Part", "part"]

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, repr=False)
class Part(Generic[T]):
    """A class and its settings.  Equal values make equal parts; each call makes a part with its own state."""

    make: Callable[..., T]
    arguments: tuple[Any, ...] = ()
    settings: tuple[tuple[str, Any], ...] = ()

    def __call__(self) -> T:
        return self.make(*self.arguments, **dict(self.settings))

    def __repr__(self) -> str:
        given = [*map(repr, self.arguments), *(f"{name}={value!r}" for name, value in self.settings)]
        return f"{self.make.__name__}({', '.join(given)})"


def part(make: Callable[P, T], *arguments: P.args, **settings: P.kwargs) -> Part[T]:
    """A factory for a part.

    >>> part(dict, rate=0.7) == part(dict, rate=0.7)
    True
    """
    return Part(make, arguments, tuple(settings.items()))
