"""How sampling parameters are declared: a field with its default, its range, and what it does.

The parameters themselves are the fields of `SamplingParams`. Their checks, the OpenAPI document with the page's
settings, the table in docs/reference/http.md and the options of the commands come from here.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple


@dataclasses.dataclass(frozen=True, slots=True)
class Bounds:
    """The range of a parameter: integers or finite numbers."""

    low: float
    high: float
    is_integer: bool = True

    def keywords(self) -> dict[str, float]:
        """Return the range as keywords of JSON Schema."""
        return {"minimum": self.low, "maximum": self.high}


class Parameter(NamedTuple):
    """A parameter as others see it; commands have an option, and the page a setting, for one that `is_option`."""

    name: str
    help: str
    bounds: Bounds | None = None
    is_option: bool = False


def parameter(default: object, help: str, bounds: Bounds | None = None, *, is_option: bool = False) -> Any:
    """Declare a field (see `Parameter`)."""
    about = {"help": help, "bounds": bounds, "is_option": is_option}
    return dataclasses.field(default=default, metadata=about)


def parameters_of(kind: type) -> tuple[Parameter, ...]:
    """Return the parameters that the fields of a dataclass declare, in their order."""
    return tuple(Parameter(field.name, **field.metadata) for field in dataclasses.fields(kind))
