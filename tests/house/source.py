"""Reads the source of the project for the house tests; it does not import what it reads."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
APP = ROOT / "app"


class Module(NamedTuple):
    """One Python file: its dotted name, path and syntax tree."""

    name: str
    path: Path
    tree: ast.Module


@cache
def modules(folder: Path = APP) -> list[Module]:
    """Every Python file of app/, or of another folder."""
    return [
        Module(_dotted(path), path, ast.parse(path.read_bytes(), str(path)))
        for path in sorted(folder.rglob("*.py"))
        if "static" not in path.parts
    ]


def imports(tree: ast.AST, *, at_top_only: bool = False) -> Iterator[str]:
    """Yield the dotted name of everything imported, `a.b` for `import a.b` and `a.b.c` for `from a.b import c`."""
    nodes = _top_level(tree) if at_top_only else ast.walk(tree)
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide the layer they come from"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def calls(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield `(dotted name, line)` of every call whose function is a plain dotted name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = dotted(node.func)
            if name:
                yield name, node.lineno


def dotted(node: ast.expr) -> str:
    """Return `a.b.c` for an attribute chain; for a chain on something else only its last names (`.b.c`)."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return ""


def _top_level(tree: ast.AST) -> Iterator[ast.AST]:
    """Walk what runs when the module is imported: no function bodies, nothing under TYPE_CHECKING."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        if isinstance(child, ast.If) and dotted(child.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            continue
        yield child
        yield from _top_level(child)


def _dotted(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
