"""Fetch wheels for a machine with a GPU and without a network: `python -m tools.gpu_wheels [FOLDER]`.

It has Python, torch, Triton and transformers; what else tools/gpu_python.py asks for, and what that needs in turn, is
fetched from pip's index in the versions of constraints.txt.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

CONSTRAINTS = Path(__file__).resolve().parents[1] / "constraints.txt"
# All but what torch and transformers bring, and their Python's own packages.
PACKAGES = (
    "annotated-doc",
    "anyio",
    "click",
    "execnet",
    "h11",
    "httptools",
    "idna",
    "iniconfig",
    "jinja2",
    "markdown-it-py",
    "markupsafe",
    "llguidance",
    "mdurl",
    "msgspec",
    "orjson",
    "packaging",
    "pluggy",
    "prometheus-client",
    "pygments",
    "pytest",
    "pytest-xdist",
    "rich",
    "sniffio",
    "sse-starlette",
    "starlette",
    "tqdm",
    "typing_extensions",
    "uvicorn",
    "uvloop",
    "websockets",
)
PLATFORMS = (
    "manylinux_2_31_x86_64",
    "manylinux_2_28_x86_64",
    "manylinux_2_17_x86_64",
    "manylinux2014_x86_64",
    "manylinux_2_5_x86_64",
)


def main() -> int:
    """Fetch; the exit code is pip's."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("gpu-wheels"))
    parser.add_argument("--python-version", default="3.12", help="that of the machine, default 3.12")
    options = parser.parse_args()
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps"]
    command += ["--only-binary", ":all:", "--constraint", str(CONSTRAINTS), "--dest", str(options.folder)]
    command += ["--python-version", options.python_version]
    command += [part for platform in PLATFORMS for part in ("--platform", platform)]
    code = subprocess.run([*command, *PACKAGES]).returncode
    if not code:
        files = list(options.folder.glob("*.whl"))
        print(f"{options.folder}: {len(files)} wheels, {sum(file.stat().st_size for file in files) / 2**20:.1f} MiB")
    return code


if __name__ == "__main__":
    sys.exit(main())
