"""Finds the regular expressions of `app/` in its source, and the methods that are called on each."""

from __future__ import annotations

import ast
import importlib
import re
from collections import defaultdict
from collections.abc import Iterator
from typing import TypeGuard

from tests.house.pumping import Pattern
from tests.house.source import Module, dotted

METHODS = ("findall", "finditer", "fullmatch", "match", "search", "split", "sub", "subn")
ATTRIBUTES = ("flags", "groupindex", "groups", "pattern")
UNKNOWN = "unknown"


def assigned(module: Module) -> dict[str, ast.Call]:
    """Return the patterns that are constants of a module, by name, and the calls that compile them."""
    targets = (
        (node.targets[0] if isinstance(node, ast.Assign) else node.target, node.value)
        for node in module.tree.body
        if isinstance(node, (ast.Assign, ast.AnnAssign))
    )
    return {target.id: value for target, value in targets if isinstance(target, ast.Name) and _compiles(value)}


def constants(module: Module) -> dict[str, Pattern]:
    """Return the patterns that are constants of a module, by name. One that cannot be imported here is read."""
    calls = assigned(module)
    if not calls:
        return {}
    try:
        values = vars(importlib.import_module(module.name))
    except ImportError:
        values = {name: _evaluated(call) for name, call in calls.items()}
    return {name: value for name, value in values.items() if isinstance(value, re.Pattern)}


def made_in_functions(module: Module) -> list[str]:
    """Return the functions of a module that compile patterns, by name, one for each."""
    at_top = {id(call) for call in assigned(module).values()}
    return [
        function.name
        for function in ast.walk(module.tree)
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
        for node in ast.walk(function)
        if _compiles(node) and id(node) not in at_top
    ]


def loose(module: Module) -> Iterator[str]:
    """Yield what hides a pattern from this test, or from its reader: `re.sub("a", ...)`, `from re import ...`."""
    at_top = {id(call) for call in assigned(module).values()}
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ImportFrom) and node.module in ("re", "regex"):
            yield f"{module.name} imports from {node.module}"
        elif isinstance(node, ast.Import) and any(name.name == "regex" or name.asname == "re" for name in node.names):
            yield f"{module.name} imports regex, or something else as re"
        elif isinstance(node, ast.Attribute) and node.attr in METHODS and dotted(node.value) == "re":
            yield f"{module.name}:{node.lineno} calls {dotted(node)}"
        elif _compiles(node) and id(node) not in at_top and isinstance(node.args[0], ast.Constant):
            yield f"{module.name}:{node.lineno} compiles a constant in a function or class"


def functions_with_patterns(modules: list[Module]) -> dict[str, set[str]]:
    """Return the functions that have a pattern as a parameter, by name, and the methods that they call on it."""
    found: dict[str, set[str]] = defaultdict(set)
    for module in modules:
        for function in ast.walk(module.tree):
            if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
                for argument in function.args.args:
                    if argument.annotation is not None and "re.Pattern" in ast.unparse(argument.annotation):
                        found[function.name] |= uses(function, argument.arg, {})
    return dict(found)


def uses(tree: ast.AST, name: str, functions: dict[str, set[str]]) -> set[str]:
    """Return the methods that are called on the pattern `name`, also in functions that get it."""
    found: set[str] = set()
    for node in ast.walk(tree):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Name) and child.id == name and isinstance(child.ctx, ast.Load):
                found |= _use(node, functions)
    return found


def _use(parent: ast.AST, functions: dict[str, set[str]]) -> set[str]:
    if isinstance(parent, ast.Attribute) and parent.attr in (*METHODS, *ATTRIBUTES):
        return {parent.attr} - {*ATTRIBUTES}
    if isinstance(parent, ast.Call):
        return functions.get(dotted(parent.func).split(".")[-1], {UNKNOWN})
    return {UNKNOWN}


def _compiles(node: ast.AST | None) -> TypeGuard[ast.Call]:
    return isinstance(node, ast.Call) and dotted(node.func) == "re.compile"


def _evaluated(call: ast.Call) -> Pattern:
    """Return the pattern of a call whose arguments are constants."""
    value: Pattern = eval(compile(ast.Expression(call), "<pattern>", "eval"), {"re": re})
    return value
