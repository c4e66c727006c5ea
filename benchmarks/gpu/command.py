"""`python -m benchmarks gpu`: what one GPU can do, and what Quire makes of it, in sections by their value.

Each section runs in processes of its own with a time limit. The JSON is written, and what the processes said added to
gpu.log, before the next one begins, so a run that is cut short keeps what it has. The predictions stand in the program,
beside the results.
"""

from __future__ import annotations

import argparse
import datetime
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from app.commands.options import Parser
from app.config.devices import CUDA, resolve_device
from app.contract.errors import CannotStart, ConfigurationError
from app.loadgen import plots
from app.observe.terminal import own_terminal
from benchmarks.figures import write_json
from benchmarks.gpu.about import about
from benchmarks.gpu.chart import chart
from benchmarks.gpu.claims import verdicts
from benchmarks.gpu.figures import Results, SectionResult
from benchmarks.gpu.report import report
from benchmarks.gpu.runs import NO_TIME, SectionRun, run_together
from benchmarks.gpu.sections import BUDGET_S, SECTIONS, WARM_UP, Section
from benchmarks.limits import conclude
from benchmarks.options import chosen, make_folder
from benchmarks.side import with_checkout
from benchmarks.stopping import stopped_by_signals

LEAST_S = 5.0  # a section with less time than this is not begun
WARM_UP_LEAST_S = 35.0
NEED_KERNELS = ("S3", "S4", "S5")
LOG = "gpu.log"


def add_options(parser: Parser) -> None:
    """Add which sections, for how long, and where the figures go."""
    known = ", ".join(f"{section.name} ({section.title})" for section in SECTIONS)
    parser.add_argument(
        "--sections", metavar="NAMES", help=f"Sections, comma-separated, of {known}; default all, in this order."
    )
    parser.add_argument(
        "--budget", type=float, default=BUDGET_S, metavar="SECONDS", help=f"Most seconds, default {BUDGET_S:g}."
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path(),
        metavar="DIR",
        help="Folder for gpu.json, gpu.svg and gpu.log, default this one.",
    )


def run(args: argparse.Namespace) -> int:
    """Measure, print and write the figures; exit code 1 if a limit is missed or a row failed."""
    began = time.monotonic()
    names = chosen(args.sections, [section.name for section in SECTIONS], "sections")
    sections = [section for section in SECTIONS if section.name in names]
    if not args.budget >= LEAST_S:
        raise ConfigurationError(f"--budget is {args.budget:g}; it must be at least {LEAST_S:g} seconds")
    if resolve_device("auto") != CUDA:
        raise CannotStart(
            "This benchmark needs an NVIDIA GPU and a torch that was built for it; `quire doctor` says what is here."
        )
    make_folder(args.out, "out")
    results = Results(about(sys.argv[1:]))
    with tempfile.TemporaryDirectory(prefix="quire-bench-") as folder, stopped_by_signals():
        try:
            measure(sections, results, args.out, Path(folder), began + args.budget)
        finally:
            _save(results, args.out)
            print_report(results)
    files = [args.out / name for name in ("gpu.json", "gpu.svg", LOG)]
    print(f"\n{plots.written(*files)}; {time.monotonic() - began:.0f} s in all")
    measured = [section for name, section in results.sections.items() if name != WARM_UP.name]
    return conclude(
        verdicts(results), [f"{section.name} {row} failed" for section in measured for row in section.failures]
    )


def measure(sections: Sequence[Section], results: Results, out: Path, folder: Path, deadline: float) -> None:
    """Run sections one after another; figures and logs of each are written before the next begins."""
    try:
        _save(results, out)
        (out / LOG).write_bytes(b"")
    except OSError as error:
        raise ConfigurationError(f"--out {out} cannot be written to: {error.strerror}") from None
    known, environ = folder / "known.json", _environ()
    say = partial(_say, time.monotonic())
    command = partial(_command, known)
    if any(section.name in NEED_KERNELS for section in sections):
        # What this takes, the sections save several times over; but they must keep their own time.
        spare = deadline - time.monotonic() - sum(section.cap_s for section in sections)
        seconds = max(min(spare, WARM_UP.cap_s), WARM_UP_LEAST_S)
        say(f"{WARM_UP.title}, at most {seconds:.0f} s")
        try:
            results.sections[WARM_UP.name] = run_together(WARM_UP, command, folder, seconds, environ, say)
        finally:
            _keep_logs(folder, out)
    for section in sections:
        write_json(known, results.to_json())
        seconds = min(section.cap_s, deadline - time.monotonic())
        say(f"{section.name}: {section.title}, at most {max(seconds, 0):.0f} s")
        if seconds < LEAST_S:
            found = SectionResult(section.name, left_out={row.name: NO_TIME for row in section.rows})
        else:
            section_run = SectionRun(section, command, folder, seconds, environ, say)
            found = results.sections[section.name] = section_run.result  # now, so that a stop keeps what there is
            try:
                section_run.run()
            finally:
                _keep_logs(folder, out)
        results.sections[section.name] = found
        _save(results, out)


def print_report(results: Results) -> None:
    """Print the table of all that was measured."""
    sys.stderr.flush()
    try:
        lines = report(results, own_terminal())
    except (ArithmeticError, LookupError, TypeError, ValueError):  # the JSON is written all the same
        lines = [traceback.format_exc()]
    for line in lines:
        print(line)
    sys.stdout.flush()


def _command(known: Path, section: Section, rows: Sequence[str], events: Path, seconds: float) -> list[str]:
    options = ["--events", str(events), "--known", str(known), "--seconds", f"{seconds:.1f}"]
    return [sys.executable, "-m", "benchmarks.gpu.program", section.name, *options, "--rows", *rows]


def _environ() -> dict[str, str]:
    """The environment of sections: this checkout is found from any folder, and the network is not used."""
    return {
        **os.environ,
        **with_checkout(),
        "PYTHONUNBUFFERED": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
    }


def _save(results: Results, out: Path) -> None:
    write_json(out / "gpu.json", results.to_json())
    try:
        plots.save(chart(results), out / "gpu.svg")
    except (ArithmeticError, LookupError, TypeError, ValueError):  # a strange figure must not end the run
        traceback.print_exc()


def _keep_logs(folder: Path, out: Path) -> None:
    """Move all that the processes of a section have said, whole, to the one log of the run."""
    with (out / LOG).open("ab") as kept:
        for log in sorted(folder.glob("*.log")):
            kept.write(f"----- {log.stem}\n".encode() + log.read_bytes() + b"\n")
            log.unlink()


def _say(began: float, line: str) -> None:
    clock = datetime.timedelta(seconds=round(time.monotonic() - began))
    print(f"[{clock}] {line}", file=sys.stderr, flush=True)
