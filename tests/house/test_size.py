"""Files have at most 400 lines, functions at most 60 and folders at most 20 modules; public names have docstrings."""

import ast
from collections import Counter
from pathlib import Path

from tests.house.source import ROOT, Module, modules

FOLDERS = ("app", "benchmarks", "tests", "tools", "training")
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
MAX_MODULES = 20
PYTHON = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
STATIC = ROOT / "app/static"
PAGE = sorted(
    path for path in [*STATIC.rglob("*.*"), *(ROOT / "tests/static").rglob("*.js")]
    if path.suffix in (".js", ".css", ".html") and STATIC / "vendor" not in path.parents
)  # fmt: skip


def test_files_are_at_most_400_lines():
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in [*PYTHON, *PAGE]}
    assert {path: length for path, length in lengths.items() if length > MAX_FILE_LINES} == {}


def test_functions_are_at_most_60_lines():
    assert [
        f"{path}:{node.lineno} {node.name}" for path in PYTHON for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and (node.end_lineno or 0) - node.lineno >= MAX_FUNCTION_LINES
    ] == []  # fmt: skip


def test_folders_of_the_package_have_at_most_20_modules():
    sizes = Counter(module.path.parent for module in modules() if module.path.stem != "__init__")
    assert {folder: size for folder, size in sizes.items() if size > MAX_MODULES} == {}


def test_public_names_have_docstrings():
    assert [line for module in modules() for line in without_docstring(module)] == []


def test_planted_names_without_docstring_are_found():
    module = Module("x", Path("x"), ast.parse("def f(): ...\nclass C:\n    def g(self): ..."))
    assert len(without_docstring(module)) == 4


def without_docstring(module: Module) -> list[str]:
    """The public names of a module that have no docstring."""
    missing = [] if ast.get_docstring(module.tree) or not module.tree.body else [f"{module.path}"]
    return missing + [
        f"{module.path}:{node.lineno} {node.name}" for node in _public(module.tree) if not ast.get_docstring(node)
    ]


def _public(tree: ast.AST):
    """Public functions and classes of a module and the public methods of its public classes."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and not node.name.startswith("_"):
            yield node
            if isinstance(node, ast.ClassDef):
                yield from _public(node)
