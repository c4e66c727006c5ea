"""What a run of the benchmark `gpu` ran on: versions, the GPU and its clocks. No torch, so that no memory is taken."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from typing import Any

from app.commands.measuring.machine import describe_run

PACKAGES = ("torch", "triton", "transformers", "numpy")
FIELDS = (
    "name",
    "driver_version",
    "memory.total",
    "memory.used",
    "clocks.sm",
    "clocks.mem",
    "clocks.max.sm",
    "clocks.max.mem",
    "power.draw",
    "power.limit",
    "temperature.gpu",
)
LIMIT_S = 5.0


def about(arguments: Sequence[str]) -> dict[str, Any]:
    """Describe the run."""
    gpu = gpu_state()
    command = " ".join(["python -m benchmarks", *arguments])
    return {**describe_run(PACKAGES), "command": command, "gpu": gpu.get("name"), "gpu_state": gpu}


def gpu_state() -> dict[str, str]:
    """Return the name, clocks (MHz), power and memory of the first GPU from nvidia-smi, or its error."""
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip() or "0"  # the one that torch calls 0
    command = ["nvidia-smi", f"--id={first}", f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"error": f"nvidia-smi: {error}"}
    values = [value.strip() for value in done.stdout.strip().splitlines()[:1] for value in value.split(",")]
    if done.returncode or len(values) != len(FIELDS):
        return {"error": f"nvidia-smi ended with code {done.returncode}: {(done.stdout + done.stderr).strip()[:200]}"}
    return dict(zip(FIELDS, values, strict=True))
