"""Names and counts of this machine's processor."""

from __future__ import annotations

import datetime
import platform
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from app import __version__
from app.runtime.cores import num_cores


def describe_run(packages: Iterable[str] = ()) -> dict[str, Any]:
    """Return start time, machine and versions of a benchmark: of Quire, Python and `packages`."""
    return {
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": {"cpu": cpu_name(), "cores": num_cores(), "system": platform.platform()},
        "versions": {
            "quire": __version__,
            "python": platform.python_version(),
            **{package: _version(package) for package in packages},
        },
    }


def machine() -> dict[str, object]:
    """Describe the machine of a measurement with torch."""
    return {"cpu": cpu_name(), "cores": num_cores(), "torch": _version("torch"), "python": platform.python_version()}


def cpu_name() -> str:
    """Return the processor's name, as reported by the system."""
    return _cpu_field("model name") or platform.processor() or platform.machine()


def cpu_features() -> frozenset[str]:
    """Return the processor's features by their Linux names; empty on other systems."""
    return frozenset(_cpu_field("flags").split())


def _cpu_field(name: str) -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == name:
                return value.strip()
    except OSError:
        pass
    return ""


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
