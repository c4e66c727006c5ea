"""Files have at most 400 lines, functions at most 60, and folders of the package and of the page at most 20 files."""

import ast
from collections import Counter

from tests.house.source import ROOT, modules

FOLDERS = ("app", "benchmarks", "tests", "tools", "training")
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
MAX_FILES = 20
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


def test_folders_have_at_most_20_files():
    files = [*(module.path for module in modules() if module.path.stem != "__init__"), *PAGE]
    sizes = Counter(path.parent for path in files)
    assert {folder: size for folder, size in sizes.items() if size > MAX_FILES} == {}
