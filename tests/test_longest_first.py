"""The files that take longest are the first, then those with the most tests."""

from pathlib import Path
from types import SimpleNamespace

from tests.longest_first import LONGEST, pytest_collection_modifyitems

ROOT = Path(__file__).resolve().parents[1]


def test_the_longest_files_come_first_and_the_order_inside_of_a_file_stays():
    names = ["tests/a.py::x", "tests/b.py::y", "tests/b.py::x", f"{LONGEST[1]}::b", f"{LONGEST[1]}::a"]
    items = [SimpleNamespace(nodeid=name) for name in names]
    pytest_collection_modifyitems(items)
    assert [item.nodeid for item in items] == [names[3], names[4], names[1], names[2], names[0]]


def test_the_named_files_exist():
    assert [name for name in LONGEST if not (ROOT / name).is_file()] == []
