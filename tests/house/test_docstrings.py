"""Public names have docstrings, except methods whose class inherits or implements one that is documented."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.house.source import Module, dotted, modules

Function = ast.FunctionDef | ast.AsyncFunctionDef
IMPLEMENTS = re.compile(r"Implements [^.:;(]*")  # how the docstring of a class begins, with the names in backquotes


def test_public_names_have_docstrings():
    assert [line for module in modules() for line in without_docstring(module)] == []


def test_planted_names_without_docstring_are_found():
    module = Module("x", Path("x"), ast.parse("def f(): ...\nclass C:\n    def g(self): ...\n    def _h(self): ..."))
    assert len(without_docstring(module)) == 4


def test_what_overrides_or_implements_a_documented_method_needs_no_docstring():
    source = """
'Module.'
class Known(CpuRunner):
    'Inherits.'
    def launch(self): ...
    def sink(self): ...

class Other:
    'Implements `Runner` and, for the scheduler, `LateSequences`. See `Ops`.'
    def launch(self): ...
    def late(self): ...
    def linear(self): ...
"""
    found = without_docstring(Module("x", Path("x"), ast.parse(source)))
    assert [line.rpartition(" ")[2] for line in found] == ["sink", "linear"]


def without_docstring(module: Module) -> list[str]:
    """The public names of a module that need a docstring and have none."""
    missing = [] if ast.get_docstring(module.tree) or not module.tree.body else [f"{module.path}"]
    return missing + [f"{module.path}:{node.lineno} {node.name}" for node in _undocumented(module.tree)]


def _undocumented(tree: ast.Module | ast.ClassDef) -> Iterator[Function | ast.ClassDef]:
    """Public functions and classes of a module, and public methods of its public classes."""
    above = _methods_above(tree) if isinstance(tree, ast.ClassDef) else set()
    for node in tree.body:
        if isinstance(node, Function | ast.ClassDef) and not node.name.startswith("_"):
            if not ast.get_docstring(node) and node.name not in above:
                yield node
            if isinstance(node, ast.ClassDef):
                yield from _undocumented(node)


def _methods_above(node: ast.ClassDef) -> set[str]:
    """The documented methods of what a class inherits or implements."""
    clause = IMPLEMENTS.match(ast.get_docstring(node) or "")
    implemented = re.findall(r"`(\w+)`", clause[0]) if clause else []
    inherited = [dotted(base).rpartition(".")[2] for base in node.bases]
    return {name for above in {*inherited, *implemented} - {node.name} for name in _methods(above)}


@cache
def _methods(name: str) -> frozenset[str]:
    """The documented methods of a class of app/, those of what it inherits or implements among them."""
    found = _classes().get(name, [])
    own = {item.name for node in found for item in node.body if isinstance(item, Function) and ast.get_docstring(item)}
    return frozenset(own.union(*map(_methods_above, found)))


@cache
def _classes() -> dict[str, list[ast.ClassDef]]:
    classes: dict[str, list[ast.ClassDef]] = {}
    for module in modules():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef):
                classes.setdefault(node.name, []).append(node)
    return classes
