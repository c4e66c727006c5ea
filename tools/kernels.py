"""Compiles the CPU kernels that this machine runs best, where there are none yet: `python -m tools.kernels`.

Called by `make setup`, so that the first start has nothing to compile. What cannot be compiled is told in one line and
is no failure: everything works without native kernels, only more slowly.
"""

from __future__ import annotations

import sys

from app.cli import EXIT_INTERRUPTED
from app.commands.stopping import stopped_by_signals
from app.kernels.cpu.compiling import supported_sets
from app.kernels.cpu.library import load_library, prepare_library
from app.observe.console import Console


def main(console: Console) -> int:
    """Make sure that there are kernels, and say which; return 0, or 130 after Ctrl-C."""
    if not supported_sets():
        console.print_line(
            "CPU kernels: none for this machine, the slower torch path is used; they need x86-64 with AVX2."
        )
        return 0
    try:
        with stopped_by_signals():
            prepare_library(console.show_status)
    except KeyboardInterrupt:
        console.print_line("CPU kernels: given up; the first start compiles them.")
        return EXIT_INTERRUPTED
    console.clear_status()
    library = load_library()  # says itself why there is none
    if library is not None:
        console.print_line(f"CPU kernels: {library.instruction_set}")
    return 0


if __name__ == "__main__":
    sys.exit(main(Console(sys.stdout)))
