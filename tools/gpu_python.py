"""A Python for the parts of `make gpu`: that of the machine with its torch, and what else is needed in a folder."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tomllib
import venv
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

PYPROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"
# Besides what the package needs. safetensors and transformers: tests/gpu and the benchmark compare with it.
TOOLS = ("pytest>=8.3", "pytest-xdist>=3.8", "sse-starlette>=3.7", "safetensors>=0.4.3", "transformers>=5.17")


class CannotRun(Exception):
    """Why nothing can be run here, in words for people."""


def make_python(folder: Path, wheels: Path) -> Path:
    """Return the Python of a virtual environment in `folder`, in which all that is needed is installed.

    What the Python of this process has counts, in the versions that pyproject.toml allows; the rest comes from `wheels`
    if there is such a folder, without a network, else from pip's index.

    Raises:
        CannotRun: there is no torch or Triton, or something cannot be installed.
    """
    for name in ("torch", "triton"):
        if find_spec(name) is None:
            raise CannotRun(
                f"{sys.executable} has no {name}; name a Python that has it: make gpu PYTHON=/path/to/python"
            )
    python, wanted = folder / "bin" / "python", requirements()
    outer = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    stamp, key = folder / "stamp", _key(wanted, outer, wheels)
    if stamp.exists() and stamp.read_text() == key:
        return python
    venv.create(folder, clear=True, symlinks=True)
    (inner,) = folder.glob("lib/python*/site-packages")
    # Not `system_site_packages`: where this Python is itself one of a virtual environment, those are not the system's.
    (inner / "outer.pth").write_text("\n".join(outer) + "\n")
    source = ["--no-index", "--find-links", str(wheels)] if wheels.is_dir() else []
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check", "--quiet"]
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([*pip, "install", *source, *wanted], capture_output=True, text=True, env=environ)
    if done.returncode:
        advice = "" if source else f" (no network? On a machine with one: make gpu-wheels, then copy {wheels} here)"
        raise CannotRun(f"packages are missing{advice}:\n{done.stderr.strip()}")
    stamp.write_text(key)
    return python


def requirements() -> list[str]:
    """Return the requirements of the package, its tests and its benchmarks on a GPU, as pip wants them."""
    return [*tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]["dependencies"], *TOOLS]


def _key(wanted: Sequence[str], outer: Sequence[str], wheels: Path) -> str:
    """Return a hash of all that a finished environment was made from."""
    files = sorted(file.name for file in wheels.glob("*.whl"))
    return hashlib.sha256(repr((sys.executable, wanted, outer, files)).encode()).hexdigest()
