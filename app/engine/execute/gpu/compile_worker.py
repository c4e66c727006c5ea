"""A process that compiles its share of a model's kernels into Triton's cache. Started by `precompilation`.

    python -m app.engine.execute.gpu.compile_worker FOLDER

Reads a job as JSON from stdin. All workers of a job find the same kernels in the same order; whoever first makes the
file of a kernel's number in FOLDER compiles it. Writes a JSON line per kernel, and first one with their number.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

from app.checkpoint.inspection import inspect
from app.config.settings import make_config
from app.engine.execute.gpu.dry_run import DryDevice, dry_calibration, dry_run
from app.kernels.triton.specializations import Specializations, build_launcher, check_shared_memory

MAX_CHARS = 500  # of an error, so that a line goes through a pipe in one piece


def find(job: dict[str, Any]) -> Specializations:
    """Return all that a job's model launches, on GPUs of one compute capability with any of these processor counts."""
    config = make_config(job["settings"])
    spec = inspect(config.model).spec
    capability = tuple(job["capability"])
    specializations = Specializations(capability)
    with specializations:
        for num_processors in job["num_processors"]:
            device = DryDevice(capability, num_processors, dependent_launches=config.model.dependent_launches)
            dry_run(config, spec, device)
            if job["calibrates"]:
                dry_calibration(config, spec, device)
    return specializations


def main() -> None:
    """Compile what no other worker of the job has taken."""
    folder, job = Path(sys.argv[1]), json.load(sys.stdin)
    torch.set_num_threads(1)
    found = find(job).found
    _report(total=len(found))
    for number, (key, compile_it) in enumerate(found.items()):
        try:
            (folder / str(number)).touch(exist_ok=False)
        except FileExistsError:
            continue
        name = key.partition(" ")[0]
        try:
            kernel = compile_it()
            check_shared_memory(kernel, tuple(job["capability"]))
            build_launcher(kernel)
        except Exception as error:  # of the compiler: the others may do
            _report(kernel=name, problem=f"{type(error).__name__}: {error}"[:MAX_CHARS])
        else:
            _report(kernel=name)


def _report(**what: object) -> None:
    """Write a line in one piece: the workers share a pipe."""
    os.write(1, json.dumps(what).encode() + b"\n")


if __name__ == "__main__":
    try:
        main()
    except BrokenPipeError:  # the process that started this one has ended
        os._exit(0)
