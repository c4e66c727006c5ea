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
    "commands": Floor(("loadgen", "server", "llm", "client", "api", "streaming", "journal", "engine", *ENGINE_PARTS)),
    "loadgen": Floor(("streaming", *FLOOR_0), HEAVY),
    "server": Floor(("api", "streaming", "engine", "journal", *ENGINE_PARTS), HEAVY),
    "llm_outputs": Floor(FLOOR_0, ("asyncio", *WEB)),
    "llm_messages": Floor(("text", *FLOOR_0), ("asyncio", *WEB)),
    "llm_prompts": Floor(FLOOR_0, ("asyncio", *WEB)),
    "llm": Floor(("llm_messages", "llm_outputs", "llm_prompts", "engine", "text", *FLOOR_0), ("asyncio", *WEB)),
    "client.protocol": Floor(FLOOR_0, (*HEAVY, "asyncio", *WEB)),
    "client": Floor(FLOOR_0, (*HEAVY, "starlette", "uvicorn")),
    "api": Floor(("streaming", "text", "journal", *FLOOR_0), HEAVY),
    "streaming": Floor(("journal", *FLOOR_0), (*HEAVY, *WEB)),
    "journal": Floor(FLOOR_0, (*HEAVY, "asyncio", "threading", *WEB)),
    "engine.schedule": Floor(FLOOR_0, (*HEAVY, "asyncio", "numpy", *WEB)),
    "engine": Floor(ENGINE_PARTS, ("asyncio", "transformers", *WEB)),
    "models": Floor(("kernels", *FLOOR_0), ("asyncio", "transformers", *WEB)),
    "kernels": Floor(FLOOR_0, ("asyncio", "transformers", *WEB)),
    "text": Floor(FLOOR_0, (*HEAVY, "asyncio", *WEB)),
    "config": Floor(("contract",), (*HEAVY, "asyncio", *WEB)),  # the ground: settings need no room but contract
    **{name: Floor(FLOOR_0, (*HEAVY, "asyncio", *WEB)) for name in FLOOR_0 if name != "config"},
}
# The rooms of the two largest packages, the lowest first, and the arrows between them: what each imports of the others.
ROOMS: dict[str, dict[str, tuple[str, ...]]] = {
    "text": {
        "reading": (),
        "tokens": ("reading",),
        "grammar": ("tokens",),
        "calls": ("reading", "grammar"),
        "answer": ("reading", "tokens", "grammar", "calls"),
        "template": ("reading", "tokens", "calls", "answer"),
        "entry": ("tokens", "answer", "template"),
    },
    "api": {
        "http": (),
        "wire": ("http",),
        "body": ("http", "wire"),
        "routes": ("http", "wire", "body"),
        "app": ("http", "body", "routes"),
    },
}
MAX_ROOMS_AND_ARROWS = {"text": (8, 16), "api": (5, 12)}
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


def arrows_of(module: Module) -> dict[str, str]:
    """What a module imports of other rooms of its package, and those rooms."""
    _, package, room, *_ = [*module.name.split("."), "", ""]
    if package not in ROOMS or not room:
        return {}
    names = (name for name in imports(module.tree) if name.startswith(f"app.{package}."))
    return {name: name.split(".")[2] for name in names if name.split(".")[2] != room}


def may_import(package: str, room: str, other: str) -> bool:
    """Whether an arrow leads from a room to another one of its package.

    A folder of `api` that ROOMS does not name is a wire, of a further API: only the routes know it.
    """
    rooms = ROOMS[package]
    if package == "api" and room not in rooms:
        return other in rooms["routes"]
    return other in rooms[room] or ((package, room) == ("api", "routes") and other not in rooms)


def undrawn_imports(module: Module) -> list[str]:
    """What a module imports of rooms to which no arrow leads from its own."""
    package, room = [*module.name.split("."), "", ""][1:3]
    found = arrows_of(module)
    return [f"{module.path} must not import {name}" for name, to in found.items() if not may_import(package, room, to)]


def test_rooms_import_what_is_drawn_only():
    assert [line for module in modules() for line in undrawn_imports(module)] == []


@pytest.mark.parametrize("package", ROOMS)
def test_the_drawn_arrows_are_few_lead_down_and_are_needed(package: str):
    rooms, (max_rooms, max_arrows) = ROOMS[package], MAX_ROOMS_AND_ARROWS[package]
    order = list(rooms)
    arrows = {(room, other) for room, others in rooms.items() for other in others}
    assert [arrow for arrow in arrows if order.index(arrow[0]) <= order.index(arrow[1])] == []
    assert len(rooms) <= max_rooms
    assert len(arrows) <= max_arrows
    of_package = [module for module in modules() if module.name.startswith(f"app.{package}.")]
    found = {(module.name.split(".")[2], room) for module in of_package for room in arrows_of(module).values()}
    assert arrows == {arrow for arrow in found if rooms.keys() >= set(arrow)}


def test_a_planted_import_of_a_later_room_is_found():
    tree = ast.parse("from app.api.http.context import x\nfrom app.api.routes.chat import chat_completions")
    (line,) = undrawn_imports(Module("app.api.wire.x", Path("x.py"), tree))
    assert line.endswith("app.api.routes.chat.chat_completions")


@pytest.mark.parametrize(
    ("name", "is_allowed"),
    [
        ("app.api.routes.operations", True),
        ("app.api.anthropic.assembler", True),
        ("app.api.ollama.routes", False),
        ("app.api.app", False),
        ("app.api.body.parse_request", False),
        ("app.api.wire.stream_response", False),
        ("app.api.http.context", False),
    ],
)
def test_only_the_routes_know_a_further_wire(name, is_allowed):
    module = Module(name, Path("x.py"), ast.parse("from app.api.anthropic.routes import messages"))
    assert (undrawn_imports(module) == []) == is_allowed


def test_a_further_wire_imports_what_is_below_the_routes():
    tree = ast.parse("from app.api.wire.wire import Wire\nfrom app.api.routes.chat import chat_completions")
    (line,) = undrawn_imports(Module("app.api.anthropic.routes", Path("x.py"), tree))
    assert line.endswith("app.api.routes.chat.chat_completions")


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
