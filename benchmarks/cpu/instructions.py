"""Lets a process use other kernels than the machine's best. No setting does: it is for measurements alone."""

from __future__ import annotations

from app.contract.errors import CannotStart
from app.engine.execute import selection
from app.kernels.cpu.library import NativeLibrary, load_library


def use_kernels(instruction_set: str | None) -> NativeLibrary | None:
    """Return the kernels that models opened from now on use: those for `instruction_set`, by default the best.

    Raises:
        CannotStart: there are none for this instruction set.
    """
    library = load_library(instruction_set)
    if instruction_set is not None:
        if library is None:
            raise CannotStart(f"There are no kernels for {instruction_set} here.")
        setattr(selection, "load_library", lambda: library)  # noqa: B010
    return library
