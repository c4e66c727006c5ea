"""Triton's interpreter in less time: it does not look through all of `triton.language` at each call of a function.

Before every launch, and before every call of a function that a kernel calls, the interpreter searches `triton.language`
for the functions that it replaces. These are the same each time, and the search takes a third of the time of a test.
"""

from __future__ import annotations

import inspect
from functools import cache

from triton import language
from triton.runtime import interpreter


@cache
def _names(package: object) -> list[str]:
    """The functions of a module or class that the interpreter replaces; first asked for before it replaces them."""
    return [name for name, member in inspect.getmembers(package) if language.core.is_builtin(member)]


def _patch_builtin(package: object, *rest: object) -> None:
    """See the interpreter's function of this name."""
    for name in _names(package):
        if language.core.is_builtin(member := getattr(package, name)):
            interpreter._patch_attr(package, name, member, *rest)


def install() -> None:
    """Use this for all launches of the process, where Triton is the version whose interpreter is known to work so."""
    if hasattr(interpreter, "_patch_builtin") and hasattr(interpreter, "_patch_attr"):
        interpreter._patch_builtin = _patch_builtin
