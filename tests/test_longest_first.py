"""The files that take longest are the first, then those of slow folders, then those with the most tests."""

from pathlib import Path
from types import SimpleNamespace

from tests.longest_first import LONGEST, SLOW_FOLDERS, pytest_collection_modifyitems

ROOT = Path(__file__).resolve().parents[1]


def test_the_longest_files_come_first_and_the_order_inside_of_a_file_stays():
    slow = f"{SLOW_FOLDERS[1]}test_few.py::x"
    longest = [f"{LONGEST[1]}::b", f"{LONGEST[1]}::a"]
    most = ["tests/b.py::y", "tests/b.py::x"]
    items = [SimpleNamespace(nodeid=name) for name in ("tests/a.py::x", *most, slow, *longest)]
    pytest_collection_modifyitems(items)
    assert [item.nodeid for item in items] == [*longest, slow, *most, "tests/a.py::x"]


def test_the_named_files_and_folders_exist():
    assert [name for name in LONGEST if not (ROOT / name).is_file()] == []
    assert [name for name in SLOW_FOLDERS if not (ROOT / name).is_dir()] == []
