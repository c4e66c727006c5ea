"""How counts become metrics: a field of a dataclass declares the metric family that it is shown as.

The counts of the engine are in `engine_counts`, those of other parts beside what they count. `observe.families` turns
them into Prometheus' families, and docs/reference/metrics.md lists them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from operator import attrgetter
from typing import Any, Literal, NamedTuple, Self

_FAMILY = "family"
Values = float | Mapping[Any, float]
"""A number or, of a family with labels of its own, the numbers by the value of its label, or the tuple of several."""


class MetricFamily(NamedTuple):
    """A metric family: its name without `_total`, its help, and the labels that it has besides those of the server.

    One that is not `of_engine` has no label `engine`, as in vLLM.
    """

    name: str
    kind: Literal["counter", "gauge"]
    help: str
    by: tuple[str, ...] = ()
    of_engine: bool = True


MEMORY = MetricFamily(
    "quire_memory_bytes",
    "gauge",
    "Bytes by what they are for: those that the engine has allocated, compiled grammars, and the processes that try "
    "grammars and find masks.",
    ("kind",),
)
"""Of the engine and of the grammars."""


class Counts:
    """The base of a part's counts: a dataclass with slots whose fields are declared by `counter` and `gauge`."""

    __slots__: tuple[str, ...] = ()

    def copy(self) -> Self:
        """Return a copy, to be read by another thread."""
        kind: Any = type(self)
        copied: Self = kind(*_reader(kind)(self))
        return copied


@cache
def _reader(kind: type[Any]) -> Callable[[Any], tuple[Any, ...]]:
    """Return a reader of all fields: `attrgetter` takes half the time of a loop, and each step copies all parts."""
    names = kind.__slots__
    return attrgetter(*names) if len(names) > 1 else lambda counts: (getattr(counts, names[0]),)


def counter(name: str, help: str, *, by: tuple[str, ...] = (), start: Values = 0) -> Any:
    """Declare a field that counts upwards from `start`; `/metrics` adds `_total` to its name."""
    return shown_as(MetricFamily(name, "counter", help, by), start)


def gauge(name: str, help: str, *, by: tuple[str, ...] = (), start: Values = 0) -> Any:
    """Declare a field that rises and falls."""
    return shown_as(MetricFamily(name, "gauge", help, by), start)


def shown_as(family: MetricFamily, start: Values = 0) -> Any:
    """Declare a field that is shown as `family`, which fields of other parts may be shown as, too."""
    about: dict[str, Any] = {"metadata": {_FAMILY: family}}
    if isinstance(start, Mapping):
        return dataclasses.field(default_factory=lambda: dict(start), **about)
    return dataclasses.field(default=start, **about)


class _Derived(property):
    """A property that is shown as a family."""

    family: MetricFamily


def derived(family: MetricFamily) -> Callable[[Callable[[Any], Values]], Any]:
    """Make a method a property that is shown as `family`, computed from the fields when the metrics are read."""

    def declare(compute: Callable[[Any], Values]) -> _Derived:
        made = _Derived(compute)
        made.family = family
        return made

    return declare


def values_of(counts: Any) -> Iterator[tuple[MetricFamily, Values]]:
    """Yield what the fields and properties of `counts` are shown as, and those of the counts in them."""
    for name, family in _members(counts.__class__):
        value = getattr(counts, name)
        if family is not None:
            yield family, value
        elif isinstance(value, Counts):
            yield from values_of(value)


@cache
def _members(kind: type[Any]) -> tuple[tuple[str, MetricFamily | None], ...]:
    fields = [(field.name, field.metadata.get(_FAMILY)) for field in dataclasses.fields(kind)]
    computed = [(name, member.family) for name, member in vars(kind).items() if isinstance(member, _Derived)]
    return (*fields, *computed)
