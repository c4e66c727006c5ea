"""What no line of ours may do: run data as code, or hide state in a module."""

import ast
import re

import pytest

from tests.house.source import Module, calls, imports, modules

CODE_READERS = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
CODE_RUNNERS = {"eval", "exec", "compile", "__import__", "torch.load", "numpy.load", "np.load", "os.system"}
MODULES = modules()


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.name)
def test_no_data_is_run_as_code(module: Module):
    readers = [name for name in imports(module.tree) if name.split(".")[0] in CODE_READERS]
    runners = [f"{name} in line {line}" for name, line in calls(module.tree) if name in CODE_RUNNERS]
    trusting = [
        f"{keyword.arg} in line {keyword.value.lineno}" for keyword in ast.walk(module.tree)
        if isinstance(keyword, ast.keyword) and keyword.arg in ("trust_remote_code", "shell")
        and not (isinstance(keyword.value, ast.Constant) and keyword.value.value is False)
    ]  # fmt: skip
    assert readers + runners + trusting == []


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.name)
def test_no_module_global_changes(module: Module):
    assert [node.lineno for node in ast.walk(module.tree) if isinstance(node, ast.Global)] == []


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.name)
def test_nothing_is_left_to_do(module: Module):
    """An open end belongs in an issue, not in a comment."""
    assert re.findall(r"\b(?:TODO|FIXME|XXX)\b", module.path.read_text(encoding="utf-8")) == []
