"""Runs the programs of this folder, in which Triton does not interpret, and reads their last line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def run_program(name: str, *arguments: object, cache: Path | None = None) -> Any:
    """Return the JSON that a program writes; it has as much time as its test."""
    environ = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    if cache is not None:
        environ["TRITON_CACHE_DIR"] = str(cache)
    command = [sys.executable, "-m", f"tests.engine.execute.gpu.{name}", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=environ, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])
