"""Public names have docstrings, except methods whose class inherits or implements one that is documented.

Those of functions begin with a verb; a property is a thing, and may begin with its name. All name their subject.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.house.source import Module, dotted, modules

Function = ast.FunctionDef | ast.AsyncFunctionDef
IMPLEMENTS = re.compile(r"Implements [^.:;(]*")  # how the docstring of a class begins, with the names in backquotes
NO_VERB = re.compile(
    r"(?:An?|All|At|Before|By|For|How|If|In|No|On|One|Some|That|The|This|Under|What|Where|Whether|Which)\b|[^A-Z]"
)

NO_SUBJECT = re.compile(r"(?:Return what|What)\b")


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


def test_docstrings_of_functions_begin_with_a_verb():
    assert [line for module in modules() for line in without_verb(module.tree)] == []


@pytest.mark.parametrize("words", ["The x.", "Whether y.", "out = x.", "32 bits."])
def test_a_planted_docstring_without_a_verb_is_found(words):
    assert without_verb(ast.parse(f"def f():\n    '{words}'")) == [f"f: {words}"]
    assert without_verb(ast.parse(f"@property\ndef f(self):\n    '{words}'\ndef g():\n    'Return x.'")) == []


def test_docstrings_name_their_subject():
    assert [line for module in modules() for line in without_subject(module.tree)] == []


@pytest.mark.parametrize("words", ["Return what is left.", "What is left."])
def test_a_planted_docstring_without_a_subject_is_found(words):
    assert without_subject(ast.parse(f"class C:\n    def f(self):\n        '{words}'")) == [f"f: {words}"]
    assert without_subject(ast.parse("class C:\n    'What is left.'")) == ["C: What is left."]
    assert without_subject(ast.parse("def f():\n    'Return the rest, and what it takes.'")) == []


def without_verb(tree: ast.Module) -> list[str]:
    """The functions, but for properties, whose docstring does not begin with a verb."""
    return [
        f"{node.name}: {docstring}" for node in ast.walk(tree) if isinstance(node, Function)
        if not any(dotted(item).endswith("property") for item in node.decorator_list)
        and (docstring := ast.get_docstring(node)) and NO_VERB.match(docstring)
    ]  # fmt: skip


def without_subject(tree: ast.Module) -> list[str]:
    """The functions and classes whose docstring says "what" instead of naming its subject."""
    return [
        f"{node.name}: {docstring}" for node in ast.walk(tree) if isinstance(node, Function | ast.ClassDef)
        if (docstring := ast.get_docstring(node)) and NO_SUBJECT.match(docstring)
    ]  # fmt: skip


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
