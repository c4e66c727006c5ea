"""Runs the tests of the wire with other versions of its dependencies: `python -m tools.versions`.

First the lowest versions that pyproject.toml allows, then the newest, each installed into a folder of its own before
.venv on the path. If the newest ones are those of .venv, they are skipped, because `make test` uses them.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from importlib.metadata import distributions, version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("httptools", "starlette", "uvicorn", "websockets")
# Tests that use them: valid and malformed input on the wire, the shutdown of a server, the OpenAI client.
TESTS = (
    "tests/server/test_internals.py",
    "tests/server/test_http_protocol.py",
    "tests/server/test_protocol_cuts.py",
    "tests/server/test_websocket_protocol.py",
    "tests/server/test_websocket_ends.py",
    "tests/server/test_lifecycle.py",
    "tests/api/test_openai_client.py",
    "tests/api/wire/test_openai_wire.py",
    "tests/api/http/test_connection.py",
    "tests/api/routes/test_websocket.py",
)


def main() -> int:
    """Run the tests twice; 1 if one of the runs fails."""
    allowed = requirements((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    lowest = [f"{name}=={lower_bound(allowed[name])}" for name in PACKAGES]
    is_good = run_with("lowest", lowest)
    return int(not (run_with("newest", [allowed[name] for name in PACKAGES]) and is_good))


def requirements(pyproject: str) -> dict[str, str]:
    """Return the run-time dependencies of a pyproject.toml by name."""
    found = tomllib.loads(pyproject)["project"]["dependencies"]
    return {re.split(r"[^A-Za-z0-9_-]", each, maxsplit=1)[0]: each.partition(";")[0].strip() for each in found}


def lower_bound(requirement: str) -> str:
    """Return the lowest version that a requirement such as `uvicorn>=0.53,<0.55` allows.

    Raises:
        ValueError: it names none.
    """
    match = re.search(r">=([0-9.]+)", requirement)
    if match is None:
        raise ValueError(f"{requirement} has no lowest version")
    return match[1]


def run_with(name: str, wanted: Sequence[str]) -> bool:
    """Run the tests with `wanted` packages in place of those of .venv; return whether they passed."""
    with tempfile.TemporaryDirectory(prefix="quire-versions-") as folder:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
        subprocess.run([*pip, "install", "--no-deps", "--target", folder, *wanted], check=True)
        found = {each.name: each.version for each in distributions(path=[folder])}
        title = f"{name}: {', '.join(f'{package} {found[package]}' for package in PACKAGES)}"
        if all(found[package] == version(package) for package in PACKAGES):
            print(f"{title}; these are what `make test` runs with", flush=True)
            return True
        print(title, flush=True)
        environment = os.environ | {"PYTHONPATH": folder}
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.second_try", *TESTS]
        return subprocess.run(command, cwd=ROOT, env=environment).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
