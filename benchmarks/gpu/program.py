"""A section's process: `benchmarks.gpu.program SECTION --events FILE --known FILE --seconds N --rows ROW ...`."""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import cast

from app.kernels.triton.specializations import fix_cache_keys
from benchmarks.gpu.events import EventWriter
from benchmarks.gpu.figures import Results
from benchmarks.gpu.sections import find_section
from benchmarks.gpu.tasks import CannotMeasure, Measures, Task


def run_rows(module: Measures, rows: Sequence[str], task: Task, events: EventWriter, caps: Mapping[str, float]) -> int:
    """Measure rows one after another, up to the first that fails: what it leaves behind may spoil the next."""
    for row in rows:
        events.begin(row)
        deadline = min(task.deadline, time.monotonic() + caps.get(row, math.inf))
        try:
            for figure in module.measure(task._replace(row=row, deadline=deadline)):
                events.figure(row, figure)
        except CannotMeasure as error:
            events.failed(row, str(error), is_final=True)
            continue
        except Exception:
            said = traceback.format_exc()
            print(said, file=sys.stderr)
            events.failed(row, said)
            return 1
        events.end(row)
        if row in getattr(module, "LEAVES_THREADS", ()):
            return 0  # the rest is for a new process
    return 0


def main() -> int:
    """Measure what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("section")
    parser.add_argument("--rows", nargs="+", required=True)
    parser.add_argument("--events", type=Path, required=True)
    parser.add_argument("--known", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    args = parser.parse_args()
    deadline = time.monotonic() + args.seconds
    events, section = EventWriter(args.events), find_section(args.section)
    try:
        module = cast("Measures", import_module(f"benchmarks.gpu.{section.module}"))
        fix_cache_keys()  # each section finds what another has compiled
    except Exception:
        events.begin(args.rows[0])
        events.failed(args.rows[0], traceback.format_exc())
        return 1
    task = Task("", args.events.parent, Results.load(args.known), deadline)
    return run_rows(module, args.rows, task, events, {row.name: row.cap_s for row in section.rows})


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # whatever threads are left: all that counts is written
