"""`python -m benchmarks cpu --gguf` and `--families`: Quire and llama.cpp on the same GGUF files.

The former with all instructions and with AVX2; the latter with dummy weights in the real shapes of other families and
of mixtures of experts. Needs `make peers`; SmolLM2's files need `make real-model` too.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from tqdm import tqdm

from app.contract.errors import ConfigurationError
from app.observe.terminal import own_terminal
from benchmarks.cpu.gguf.cells import SETS, Subject
from benchmarks.cpu.gguf.figures import Figures
from benchmarks.cpu.gguf.files import Files
from benchmarks.cpu.gguf.report import report
from benchmarks.cpu.gguf.rounds import Plan, Rounds
from benchmarks.cpu.gguf.sides import program_folder
from benchmarks.cpu.sides import PEERS
from benchmarks.figures import write_json
from benchmarks.limits import conclude
from benchmarks.options import chosen
from benchmarks.stopping import stopped_by_signals


def make_plan(subject: Subject, shapes: str | None, formats: str | None, sets: str | None, rounds: int) -> Plan:
    """Return the cells of a subject to measure, by comma-separated names; None means all.

    Raises:
        ConfigurationError: an unknown name, or nothing to measure.
    """
    cells = subject.cells(
        chosen(shapes, tuple(subject.formats), "shapes"),
        chosen(formats, subject.known_formats, "dtypes"),
        chosen(sets, tuple(SETS), "sets"),
    )
    if not cells:
        raise ConfigurationError(f"nothing is left to measure: {subject.name} has no cell of these names")
    return Plan(cells, rounds)


def check_peers(plan: Plan) -> None:
    """Check that llama.cpp's programs for a plan are there.

    Raises:
        ConfigurationError: one is missing.
    """
    folders = [program_folder(name) for name in dict.fromkeys(cell.set for cell in plan.cells)]
    programs = [folder / name for folder in folders for name in ("llama-batched-bench", "llama-perplexity")]
    programs.append(program_folder("native") / "llama-quantize")
    for program in programs:
        if not program.exists():
            raise ConfigurationError(f"GGUF files need {program}; `make peers PEERS='llama.cpp gguf'` builds it.")


def run(args: argparse.Namespace, subject: Subject, plan: Plan, about: dict[str, Any]) -> int:
    """Measure, print and write the figures; exit code 1 where Quire is slower than required, or a cell was left out."""
    check_peers(plan)
    figures = Figures({"benchmark": subject.name, **about, "rounds": plan.rounds})
    folder = PEERS / "models"
    folder.mkdir(exist_ok=True)
    out: Path = args.out / subject.result
    with stopped_by_signals(), tqdm(total=len(plan.cells), unit="cell") as bar:

        def done() -> None:
            bar.update()
            write_json(out, figures.to_json())

        try:
            Rounds(plan, Files(folder, program_folder("native")), figures, bar.set_description, done).run()
        finally:
            bar.close()
            sys.stderr.flush()
            print("\n".join([*figures.left_out, *report(figures, own_terminal())]), flush=True)
    print(f"\nWritten: {out}")
    return conclude(figures.verdicts(), figures.left_out)
