"""Each process begins to import with another part of the files, and imports all of them; errors are left to pytest."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import shared_rewriting
from tests.shared_rewriting import names_from, pytest_collection


@pytest.fixture(name="root")
def _root(tmp_path: Path) -> Path:
    for name in ("a/conftest.py", "a/test_x.py", "a/fakes.py", "b/c/test_y.py", "test_z.py"):
        (tmp_path / "tests" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tests" / name).touch()
    return tmp_path


def test_workers_begin_with_different_parts_and_come_to_all(root: Path):
    names = ["tests.a.conftest", "tests.a.test_x", "tests.b.c.test_y", "tests.test_z"]
    assert names_from(root, 0, 2) == names
    assert names_from(root, 1, 2) == names[2:] + names[:2]
    assert names_from(root, 3, 2) == names_from(root, 1, 2), "it replaces one that has ended"


def test_a_file_that_cannot_be_imported_is_left_to_pytest(root: Path, monkeypatch: pytest.MonkeyPatch):
    imported = []

    def fake_import(name: str) -> None:
        imported.append(name)
        if name.endswith("test_x"):
            raise SyntaxError(name)
        if name.endswith("test_y"):
            pytest.skip("no such device")

    monkeypatch.setattr(shared_rewriting.importlib, "import_module", fake_import)
    config = SimpleNamespace(rootpath=root, workerinput={"workerid": "gw1", "workercount": 2})
    pytest_collection(SimpleNamespace(config=config))
    assert imported == names_from(root, 1, 2)


def test_a_run_without_workers_imports_nothing_before_pytest_does(root: Path, monkeypatch: pytest.MonkeyPatch):
    imported = []
    monkeypatch.setattr(shared_rewriting.importlib, "import_module", imported.append)
    pytest_collection(SimpleNamespace(config=SimpleNamespace(rootpath=root)))
    assert imported == []
