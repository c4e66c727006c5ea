"""Files stay readable: at most 400 lines, functions at most 60; and public names say what they are for."""

import ast

import pytest

from tests.house.source import ROOT, Module, modules

FOLDERS = ("app", "benchmarks", "tests", "tools", "training")
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
PYTHON = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
PAGE = sorted(path for path in (ROOT / "app/static").glob("*.*") if path.suffix in (".js", ".css", ".html"))


@pytest.mark.parametrize("path", [*PYTHON, *PAGE], ids=lambda path: str(path.relative_to(ROOT)))
def test_files_are_at_most_400_lines(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MAX_FILE_LINES


@pytest.mark.parametrize("path", PYTHON, ids=lambda path: str(path.relative_to(ROOT)))
def test_functions_are_at_most_60_lines(path):
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            assert node.end_lineno - node.lineno < MAX_FUNCTION_LINES, f"{path}:{node.lineno} {node.name}"


@pytest.mark.parametrize("module", modules(), ids=lambda module: module.name)
def test_public_names_have_docstrings(module: Module):
    missing = [] if ast.get_docstring(module.tree) or not module.tree.body else [f"{module.path}"]
    missing += [f"{module.path}:{node.lineno} {node.name}" for node in _public(module.tree)
                if not ast.get_docstring(node)]  # fmt: skip
    assert missing == []


def _public(tree: ast.AST):
    """Public functions and classes of a module and the public methods of its public classes."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and not node.name.startswith("_"):
            yield node
            if isinstance(node, ast.ClassDef):
                yield from _public(node)
