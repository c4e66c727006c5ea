"""The rooms of the chat page: each loads what docs/design/page.md says, and only rooms above it in that table."""

import re
from os.path import normpath
from pathlib import Path

import pytest

from tests.house.source import APP, ROOT

STATIC = APP / "static"
MADE = {"vendor", "compressed"}  # by hatch_build.py
OURS = [path for path in STATIC.rglob("*.*") if path.is_file() and path.relative_to(STATIC).parts[0] not in MADE]
MODULE = re.compile(r"""(?:from|import) ?\(?["`](\.[^"`$]+)""")  # at once, later, or as a type
STYLE = re.compile(r'"(\w+/[\w.]+\.css)"')  # by lazy.js, which begins at the folder of the page
ROW = re.compile(r"^\| `(\w+)` \| .+ \| (.+) \|$", re.MULTILINE)


def drawn_rooms() -> dict[str, list[str]]:
    """The rooms of the table from its top, and which other ones each loads."""
    table = (ROOT / "docs" / "design" / "page.md").read_text(encoding="utf-8").split("## Rooms\n")[1].split("\n## ")[0]
    rooms: dict[str, list[str]] = {}
    for room, loads in ROW.findall(table):
        rooms[room] = list(rooms) if loads == "all" else re.findall(r"\w+", loads)
    return rooms


def loaded_rooms(path: Path, text: str) -> set[str]:
    """The other rooms of which a module loads anything."""
    room = path.relative_to(STATIC).parts[0]
    modules = {normpath(path.relative_to(STATIC).parent / name).split("/")[0] for name in MODULE.findall(text)}
    return (modules | {name.split("/")[0] for name in STYLE.findall(text)}) - {room}


def test_every_file_is_in_a_room_but_for_the_first():
    assert sorted(path.name for path in OURS if path.parent == STATIC) == ["app.js", "index.html", "quire.svg"]
    assert {path.parent for path in OURS} - {STATIC} == {STATIC / room for room in drawn_rooms()}


def test_rooms_load_only_rooms_above_them():
    rooms = drawn_rooms()
    order = list(rooms)
    assert {room: others for room, others in rooms.items() if not set(others) <= set(order[: order.index(room)])} == {}


@pytest.mark.parametrize("room", drawn_rooms())
def test_a_room_loads_what_is_drawn_and_nothing_else(room: str):
    found = {other for path in (STATIC / room).glob("*.js") for other in loaded_rooms(path, path.read_text("utf-8"))}
    assert found == set(drawn_rooms()[room])


@pytest.mark.parametrize(
    "line",
    [
        'import { Page } from "../shell/page.js";',
        'import "../shell/page.js";',
        'const Page = lazy((again) => import("../shell/page.js" + again), "Page");',
        "const load = retrying((again) => import(`../shell/page.js${again}`));",
        '/** @param {import("../shell/page.js").Page} page */',
        'const Part = lazy((again) => import("./part.js" + again), "Part", "shell/page.css");',
    ],
)
def test_a_planted_arrow_is_found(line: str):
    assert loaded_rooms(STATIC / "tree" / "tree.js", line) == {"shell"}
