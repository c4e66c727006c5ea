"""Imports go down only: the floors of docs/architecture.md, by syntax tree and at run time."""

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.house.source import ROOT, Module, imports, modules

FLOOR_0 = ("checkpoint", "config", "contract", "observe", "runtime")
ENGINE_PARTS = ("models", "kernels", "text", *FLOOR_0)
HEAVY = ("torch", "transformers", "triton")
OUTSIDE = ("benchmarks", "tests", "tools", "training")  # not part of what is installed
WEB = ("starlette", "uvicorn", "sse_starlette", "websockets", "httptools", "uvloop")


class Floor(NamedTuple):
    """What a package may import of app/ (besides itself), and what it must not import of others."""

    ours: tuple[str, ...]
    forbidden: tuple[str, ...] = ()


# The first prefix that fits decides. Packages on top may import everything below; no module imports them.
FLOORS = {
    "__init__": Floor(("llm", "llm_outputs", "contract")),
    "__main__": Floor(("cli",)),
    "cli": Floor(("commands", *FLOOR_0), (*HEAVY, *WEB)),
    "commands": Floor(("loadgen", "server", "llm", "client", "api", "streaming", "engine", *ENGINE_PARTS)),
    "loadgen": Floor(("streaming", *FLOOR_0), HEAVY),
    "server": Floor(("api", "streaming", "engine", *ENGINE_PARTS), HEAVY),
    "llm_outputs": Floor(FLOOR_0, ("asyncio", *WEB)),
    "llm_messages": Floor(FLOOR_0, ("asyncio", *WEB)),
    "llm_prompts": Floor(FLOOR_0, ("asyncio", *WEB)),
    "llm": Floor(("llm_messages", "llm_outputs", "llm_prompts", "engine", "text", *FLOOR_0), ("asyncio", *WEB)),
    "client.protocol": Floor(FLOOR_0, (*HEAVY, "asyncio", *WEB)),
    "client": Floor(FLOOR_0, (*HEAVY, "starlette", "uvicorn")),
    "api": Floor(("streaming", "text", *FLOOR_0), HEAVY),
    "streaming": Floor(FLOOR_0, (*HEAVY, *WEB)),
    "engine.schedule": Floor(FLOOR_0, (*HEAVY, "asyncio", "numpy", *WEB)),
    "engine": Floor(ENGINE_PARTS, ("asyncio", "transformers", *WEB)),
    "models": Floor(("kernels", *FLOOR_0), ("asyncio", "transformers", *WEB)),
    "kernels": Floor(FLOOR_0, ("asyncio", "transformers", *WEB)),
    "text": Floor(FLOOR_0, (*HEAVY, "asyncio", *WEB)),
    "config": Floor(("contract",), (*HEAVY, "asyncio", *WEB)),  # the ground: no other room is needed to read settings
    **{name: Floor(FLOOR_0, (*HEAVY, "asyncio", *WEB)) for name in FLOOR_0 if name != "config"},
}
# The rooms of the two largest packages, the lowest first: each may import those before it.
ROOMS = {
    "text": (
        "reading",
        "tokens",
        "grammar",
        "calls",
        "answer",
        "template",
        "frontend",
        "opened_model",
        "chat_prompt",
        "request_builder",
    ),
    "api": ("http", "wire", "body", "routes", "app"),
}
# `chat` and `models` are commands and routes, as users type them; `noise` is one function, in Python and in Triton.
NAMED_ALIKE = ("chat", "models", "noise")
TORCH_FREE = ("api", "streaming", "text", "engine.schedule", "server", "cli", *FLOOR_0)


def is_in(name: str, package: str) -> bool:
    """Whether dotted `name` (without `app.`) is `package` or inside it."""
    return name == package or name.startswith(package + ".")


def package_of(module: Module) -> str:
    """The entry of FLOORS a module belongs to."""
    name = module.name.removeprefix("app").removeprefix(".") or "__init__"
    return next((package for package in FLOORS if is_in(name, package)), f"no floor for {module.name}")


def forbidden_imports(module: Module) -> list[str]:
    """What a module imports and must not."""
    package = package_of(module)
    floor, found = FLOORS[package], []
    for name in imports(module.tree):
        if name.split(".")[0] == "app":
            inner = name.removeprefix("app").removeprefix(".")
            is_allowed = name == "app.__version__" or any(is_in(inner, other) for other in (package, *floor.ours))
        else:
            is_allowed = not any(is_in(name, other) for other in (*floor.forbidden, *OUTSIDE))
        if not is_allowed:
            found.append(f"{module.path} ({package}) must not import {name}")
    return found


def test_imports_go_down_only():
    assert [line for module in modules() for line in forbidden_imports(module)] == []


def imports_of_later_rooms(module: Module) -> list[str]:
    """What a module imports of a room above its own."""
    _, package, room, *_ = [*module.name.split("."), "", ""]
    if package not in ROOMS or not room:
        return []
    above = ROOMS[package][ROOMS[package].index(room) + 1 :]
    names = (name for name in imports(module.tree) if name.startswith(f"app.{package}."))
    return [f"{module.path} must not import {name}" for name in names if name.split(".")[2] in above]


def test_rooms_import_those_before_them_only():
    assert [line for module in modules() for line in imports_of_later_rooms(module)] == []


def test_a_planted_import_of_a_later_room_is_found():
    tree = ast.parse("from app.api.http.context import x\nfrom app.api.routes.chat import parse_chat")
    (line,) = imports_of_later_rooms(Module("app.api.wire.x", Path("x.py"), tree))
    assert line.endswith("app.api.routes.chat.parse_chat")


def test_a_planted_upward_import_is_found():
    module = Module("app.streaming.x", Path("x.py"), ast.parse("import torch\nfrom app.api.app import create_app"))
    assert [line.rpartition(" ")[2] for line in forbidden_imports(module)] == ["torch", "app.api.app.create_app"]
    module = Module("app.config.x", Path("x.py"), ast.parse("from app.checkpoint.names import resolve"))
    assert [line.rpartition(" ")[2] for line in forbidden_imports(module)] == ["app.checkpoint.names.resolve"]


def test_no_two_modules_have_the_same_name():
    """Except pairs of CPU and GPU, and the names in NAMED_ALIKE (docs/architecture.md says why)."""
    modules_by_stem: dict[str, set[str]] = {}
    for module in modules():
        if module.path.stem not in ("__init__", *NAMED_ALIKE):
            modules_by_stem.setdefault(module.path.stem, set()).add(
                re.sub(r"\b(cpu|gpu|triton)\b", "device", module.name)
            )
    assert {stem: found for stem, found in modules_by_stem.items() if len(found) > 1} == {}


def test_no_import_cycles():
    everything = [*modules(), *modules(ROOT / "benchmarks")]
    names = {module.name for module in everything}
    graph = {
        module.name: {_module(name, names) for name in imports(module.tree, at_top_only=True)}
        & names - {"app", module.name}
        for module in everything
    }
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " → ".join([*path[path.index(name) :], name])
        if name not in done:
            for other in graph[name]:
                visit(other, (*path, name))
            done.add(name)

    for name in graph:
        visit(name, ())


@pytest.mark.parametrize("names", ["app.api.app", "everything torch-free"])
def test_serving_side_loads_no_torch(names: str):
    """In a fresh interpreter, since this one may have torch already."""
    if names == "everything torch-free":
        free = [
            module.name for module in modules()
            if any(is_in(module.name.removeprefix("app."), package) for package in TORCH_FREE)
        ]  # fmt: skip
        names = ", ".join(free)
    code = f"import {names}, sys; sys.exit(' '.join(sorted(set(sys.modules) & {set(HEAVY)!r})) or 0)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def _module(name: str, known: set[str]) -> str:
    """The module an imported name lives in: itself, or the part before the last dot."""
    return name if name in known else name.rpartition(".")[0]
