"""Properties that are computed at the first use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar, overload

Value = TypeVar("Value", covariant=True)


class lazy_property(Generic[Value]):  # noqa: N801 (it is used like `property`)
    """A property of an object that is computed at the first use and then an attribute of it.

    `functools.cached_property` of Python 3.11 holds one lock for all objects of a class while it computes, so one slow
    request would stop all others. This has none: threads that come at once may each compute it, and get the same value.
    """

    def __init__(self, compute: Callable[[Any], Value]) -> None:
        self._compute = compute
        self._name = compute.__name__
        self.__doc__ = compute.__doc__

    @overload
    def __get__(self, owner: None, kind: type) -> Self: ...
    @overload
    def __get__(self, owner: object, kind: type) -> Value: ...
    def __get__(self, owner: object | None, kind: type) -> Self | Value:
        if owner is None:
            return self
        value: Value = vars(owner).setdefault(self._name, self._compute(owner))
        return value
