"""`docs/pains.md` names only tests that exist, and every regression test."""

import re
from pathlib import Path

from tests.house.source import ROOT

NAMED = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / "docs/pains.md").read_text(encoding="utf-8"))


def names_in(file: Path) -> list[str]:
    """The names of a file's tests."""
    return re.findall(r"^(?:async )?def (test_\w+)", file.read_text(encoding="utf-8"), re.MULTILINE)


def test_every_test_named_on_the_page_exists():
    assert [f"{path}::{name}" for path, name in NAMED if name not in names_in(ROOT / path)] == []


def test_every_regression_test_is_named_on_the_page():
    folder = ROOT / "tests/regressions"
    files = [file for file in folder.glob("test_*.py") if file != Path(__file__)]
    existing = {(f"tests/regressions/{file.name}", name) for file in files for name in names_in(file)}
    assert existing - set(NAMED) == set()
