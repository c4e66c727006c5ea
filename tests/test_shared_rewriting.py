"""Another process imports the files that were not rewritten yet, the last one first; errors are left to pytest."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from _pytest.assertion.rewrite import PYC_TAIL

from tests import shared_rewriting
from tests.shared_rewriting import Helper, import_all, new_modules, pytest_collection


@pytest.fixture(name="root")
def _root(tmp_path: Path) -> Path:
    for name in ("a/conftest.py", "a/test_x.py", "a/fakes.py", "b/c/test_y.py", "test_z.py"):
        (tmp_path / "tests" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tests" / name).touch()
    return tmp_path


def test_files_that_were_rewritten_before_are_left_out(root: Path):
    names = ["tests.a.conftest", "tests.a.test_x", "tests.b.c.test_y", "tests.test_z"]
    assert new_modules(root) == names
    (root / "tests/a/__pycache__").mkdir()
    (root / f"tests/a/__pycache__/test_x{PYC_TAIL}").touch()
    assert new_modules(root) == [names[0], *names[2:]]


def test_a_file_that_cannot_be_imported_is_left_to_pytest(monkeypatch: pytest.MonkeyPatch):
    imported = []

    def fake_import(name: str) -> None:
        imported.append(name)
        if name == "broken":
            raise SyntaxError(name)
        if name == "skipped":
            pytest.skip("no such device")

    monkeypatch.setattr(shared_rewriting.importlib, "import_module", fake_import)
    import_all(["broken", "skipped", "good"])
    assert imported == ["broken", "skipped", "good"]


def begin(root: Path) -> list[object]:
    """The plugins that a beginning run has registered."""
    plugins: list[object] = []
    config = SimpleNamespace(rootpath=root, pluginmanager=SimpleNamespace(register=plugins.append))
    pytest_collection(SimpleNamespace(config=config))
    return plugins


def test_the_other_process_begins_at_the_end_and_ends_with_the_search(root: Path, monkeypatch: pytest.MonkeyPatch):
    imported = root / "imported"

    def note(name: str) -> None:
        with imported.open("a") as file:
            file.write(f"{name}\n")

    monkeypatch.setattr(shared_rewriting, "FEW", 3)
    monkeypatch.setattr(shared_rewriting.importlib, "import_module", note)
    monkeypatch.setattr(Helper, "pytest_collection_finish", lambda helper: shared_rewriting.os.waitpid(helper.pid, 0))
    (helper,) = begin(root)
    helper.pytest_collection_finish()
    assert imported.read_text().splitlines() == new_modules(root)[::-1]
    monkeypatch.undo()
    monkeypatch.setattr(shared_rewriting, "FEW", 3)
    monkeypatch.setattr(shared_rewriting, "import_all", lambda names: shared_rewriting.signal.pause())
    (helper,) = begin(root)
    helper.pytest_collection_finish()
    with pytest.raises(ProcessLookupError):
        shared_rewriting.os.kill(helper.pid, 0)


def test_few_files_need_no_other_process(root: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shared_rewriting, "FEW", 4)
    assert begin(root) == []
