"""Compiles the fastest CPU kernels for this machine, if there are none yet: `python -m tools.kernels`.

Called by `make setup`, so that the first start need not compile. A failure to compile prints one line and is no error,
because everything works without native kernels, only more slowly.
"""

from __future__ import annotations

import sys

from app.cli import EXIT_INTERRUPTED
from app.kernels.cpu.compiling import supported_sets
from app.kernels.cpu.library import load_library, prepare_library
from app.observe.console import Console
from benchmarks.stopping import stopped_by_signals


def main(console: Console) -> int:
    """Compile the kernels if needed, and print their name; return 0, or 130 after Ctrl-C."""
    if not supported_sets():
        console.print_line("CPU kernels: none, the slower torch path is used; native kernels need x86-64 with AVX2.")
        return 0
    try:
        with stopped_by_signals():
            prepare_library(console.show_status)
    except KeyboardInterrupt:
        console.print_line("CPU kernels: cancelled; the first start compiles them.")
        return EXIT_INTERRUPTED
    console.clear_status()
    library = load_library()  # logs the reason if there is none
    if library is not None:
        console.print_line(f"CPU kernels: {library.instruction_set}")
    return 0


if __name__ == "__main__":
    sys.exit(main(Console(sys.stdout)))
