"""Dependent launches: every kernel waits before anything else, and every launch asks for what its block says.

That the compiler keeps the order is checked in the machine code: see test_compile.py.
"""

import ast

import pytest

from app.kernels.triton import dependent
from app.kernels.triton.dependent import launch_options, launches
from tests.house.source import ROOT, dotted

TREES = {path.stem: ast.parse(path.read_bytes()) for path in sorted((ROOT / "app/kernels/triton").rglob("*.py"))}
# What a kernel may call before it waits: nothing of it reads memory, or ends the program.
ALLOWED = {"tl.program_id", "tl.num_programs", "tl.cdiv", "_tile_of", "prefetch_rows"}
PLAIN, DEPENDENT = {"IS_DEPENDENT": False}, {"IS_DEPENDENT": True, "launch_pdl": True}


def kernels(tree: ast.Module) -> dict[str, ast.FunctionDef]:
    """The functions that are launched, by name."""
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in launched(tree)}


def launched(tree: ast.Module) -> set[str]:
    """The names of the kernels that a module launches: what is called with a grid, `name[grid](...)`."""
    names = {dotted(call.func.value) for call in grids(tree)}
    # One of two kernels: `kernel = first if ... else second`.
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and dotted(node.targets[0]) in names and isinstance(node.value, ast.IfExp):
            names |= {dotted(node.value.body), dotted(node.value.orelse)}
    return names


def grids(tree: ast.Module) -> list[ast.Call]:
    """The launches of a module."""
    return [
        node for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript)
        and ("kernel" in (dotted(node.func.value) or ""))
    ]  # fmt: skip


def before_the_wait(kernel: ast.FunctionDef) -> list[str]:
    """What a kernel does before it waits that it may not do; all of it if it does not wait at its outer level."""
    found = []
    for statement in kernel.body:
        if ast.unparse(statement) == "wait_for_previous(IS_DEPENDENT)":
            return found
        for node in ast.walk(statement):
            if isinstance(node, ast.Return | ast.For | ast.While):
                found.append(type(node).__name__)
            elif isinstance(node, ast.Call) and dotted(node.func) not in ALLOWED:
                found.append(ast.unparse(node.func))
    return [*found, "no wait"]


def test_every_kernel_waits_before_it_reads_writes_or_ends():
    found = {name: kernel for tree in TREES.values() for name, kernel in kernels(tree).items()}
    assert len(found) == 22
    assert {name: bad for name, kernel in found.items() if (bad := before_the_wait(kernel))} == {}


@pytest.mark.parametrize(
    ("body", "bad"),
    [
        ("wait_for_previous(IS_DEPENDENT)\n    return", []),
        ("row = tl.load(rows)\n    wait_for_previous(IS_DEPENDENT)", ["tl.load"]),
        ("if x:\n        return\n    wait_for_previous(IS_DEPENDENT)", ["Return"]),
        ("if x:\n        wait_for_previous(IS_DEPENDENT)", ["wait_for_previous", "no wait"]),
        ("prefetch_rows(x)", ["no wait"]),
    ],
)
def test_a_kernel_that_waits_too_late_is_found(body, bad):
    assert before_the_wait(ast.parse(f"def _kernel(x):\n    {body}\n").body[0]) == bad


def test_every_launch_takes_the_options_of_its_block():
    calls = [call for tree in TREES.values() for call in grids(tree)]
    assert len(calls) == 21
    for call in calls:
        spread = {ast.unparse(keyword.value) for keyword in call.keywords if keyword.arg is None}
        assert spread & {"launch_options()", "constants"}, ast.unparse(call)


def test_launches_are_plain_but_in_a_block_that_says_otherwise(monkeypatch):
    monkeypatch.setattr(dependent, "is_interpreting", lambda: False)
    assert launch_options() == PLAIN
    with launches(is_dependent=True):
        assert launch_options() == DEPENDENT
        with launches(is_dependent=False):
            assert launch_options() == PLAIN
        assert launch_options() == DEPENDENT
    with pytest.raises(KeyError), launches(is_dependent=True):
        raise KeyError
    assert launch_options() == PLAIN


def test_the_interpreter_knows_no_dependent_launches(monkeypatch):
    monkeypatch.setattr(dependent, "is_interpreting", lambda: True)
    with launches(is_dependent=True):
        assert launch_options() == PLAIN
