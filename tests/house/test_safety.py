"""What product code must not do: run data as code, or keep state in a module."""

import ast
import re
from pathlib import Path

from tests.house.source import Module, calls, imports, modules

CODE_READERS = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
CODE_RUNNERS = {"eval", "exec", "compile", "__import__", "torch.load", "numpy.load", "np.load", "os.system"}


def code_from_data(module: Module) -> list[str]:
    """What a module has that runs data as code."""
    readers = [name for name in imports(module.tree) if name.split(".")[0] in CODE_READERS]
    runners = [f"{name} in line {line}" for name, line in calls(module.tree) if name in CODE_RUNNERS]
    trusting = [
        f"{keyword.arg} in line {keyword.value.lineno}" for keyword in ast.walk(module.tree)
        if isinstance(keyword, ast.keyword) and keyword.arg in ("trust_remote_code", "shell")
        and not (isinstance(keyword.value, ast.Constant) and keyword.value.value is False)
    ]  # fmt: skip
    return [f"{module.path}: {found}" for found in readers + runners + trusting]


def test_no_data_is_run_as_code():
    assert [found for module in modules() for found in code_from_data(module)] == []


def test_planted_code_readers_and_runners_are_found():
    source = "import pickle\neval('1')\nload(trust_remote_code=True)"
    assert len(code_from_data(Module("x", Path("x"), ast.parse(source)))) == 3


def test_no_module_global_changes():
    assert [
        f"{module.path}:{node.lineno}" for module in modules() for node in ast.walk(module.tree)
        if isinstance(node, ast.Global)
    ] == []  # fmt: skip


def test_product_code_has_no_todo_comments():
    """Open work belongs in an issue, not in a comment."""
    marks = re.compile(r"\b(?:TODO|FIXME|XXX)\b")
    assert [module.path for module in modules() if marks.search(module.path.read_text(encoding="utf-8"))] == []
