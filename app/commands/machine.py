"""Names and counts of this machine's processor."""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from app import __version__


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


def cpu_name() -> str:
    """Return the processor's name, as reported by the system."""
    return _cpu_field("model name") or platform.processor() or platform.machine()


def cpu_features() -> frozenset[str]:
    """Return the processor's features by their Linux names; empty on other systems."""
    return frozenset(_cpu_field("flags").split())


def num_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


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
