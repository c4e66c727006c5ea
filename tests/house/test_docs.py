"""The docs match the code: generated pages are fresh, and every route, frame, metric and link exists."""

import ast
import json
import re
from pathlib import Path

import pytest
from starlette.routing import BaseRoute, Route

from app.config.settings import settings
from app.streaming import chat_table
from tests.api.serving import make_app
from tests.house.source import ROOT, modules
from tools.figures import PAGE, RESULTS, TABLES, with_table
from tools.page_parameters import page_parameters
from tools.reference import PAGES, PARAMETERS_JS

PAGES_BY_HAND = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
HTTP = (ROOT / "docs/reference/http.md").read_text(encoding="utf-8")
QUIRE_V1 = (ROOT / "docs/reference/websocket.md").read_text(encoding="utf-8")
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


async def routes() -> list[BaseRoute]:
    """The routes of a server."""
    return (await make_app()).routes


@pytest.mark.parametrize("name", PAGES)
def test_generated_pages_are_fresh(name):
    """If this fails: `make docs`."""
    assert (ROOT / "docs/reference" / name).read_text(encoding="utf-8") == PAGES[name]()


def test_the_pages_copy_of_the_parameters_is_fresh():
    """If this fails: `make docs`."""
    assert PARAMETERS_JS.read_text(encoding="utf-8") == page_parameters()


@pytest.mark.parametrize("name", TABLES)
def test_the_page_of_benchmarks_shows_the_figures_of_the_last_run(name):
    page = PAGE.read_text(encoding="utf-8")
    assert with_table(page, name, TABLES[name](json.loads((RESULTS / f"{name}.json").read_text()))) == page


def test_every_setting_is_documented():
    text = (ROOT / "docs/reference/settings.md").read_text(encoding="utf-8")
    assert [
        item.name for item in settings() if f"`{item.option}`" not in text or f"`{item.variable}`" not in text
    ] == []


def test_every_error_has_one_row():
    """By its code and status, which are all that clients tell errors apart by."""
    text = (ROOT / "docs/reference/errors.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`\w+` \| \d{3}) \|", text, re.MULTILINE)
    assert len(rows) > 20 and sorted(rows) == sorted(set(rows))


async def test_every_route_is_documented_and_no_other():
    documented = set(re.findall(r"^\| `(?:GET|POST) (\S+)`", HTTP, re.MULTILINE))
    served = {re.sub(r":\w+}", "}", route.path) for route in await routes()}
    assert documented == served


async def test_routes_are_documented_with_their_methods():
    for route in await routes():
        if isinstance(route, Route):
            path = re.sub(r":\w+}", "}", route.path)
            method = "POST" if "POST" in (route.methods or ()) else "GET"
            assert f"| `{method} {path}` |" in HTTP


def test_every_frame_of_the_protocol_is_documented():
    """The table of transitions names the frames of both sides, but for the connection's own."""
    frames = {event for _, event in chat_table.TRANSITIONS} - {"close"} | {"welcome", "ping", "pong"}
    assert [frame for frame in sorted(frames) if f"| `{frame}{{" not in QUIRE_V1] == []


def test_every_close_code_is_documented():
    codes = [value for name, value in vars(chat_table).items() if name.startswith("CLOSE_")]
    assert [code for code in codes if f"| {code} |" not in QUIRE_V1] == []


def test_links_lead_to_files():
    assert [
        f"{page.name} links to {target}" for page in PAGES_BY_HAND for target in LINK.findall(page.read_text("utf-8"))
        if "://" not in target and not (page.parent / target).exists()
    ] == []  # fmt: skip


def test_anchors_are_headings():
    anchored = re.compile(r"\]\(([^)#\s]*)#([^)\s]+)\)")
    assert [
        f"{page.name} links to {target}#{anchor}" for page in PAGES_BY_HAND
        for target, anchor in anchored.findall(page.read_text("utf-8")) if "://" not in target
        if anchor not in anchors(page.parent / target if target else page)
    ] == []  # fmt: skip


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_python_examples_are_python():
    for page in PAGES_BY_HAND:
        for example in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
            compile(example, str(page), "exec")


def test_tools_name_tests_that_exist():
    named = re.compile(r'"(tests/[\w/]+\.py)"')
    assert [
        f"{path.name} names {test}" for path in (ROOT / "tools").rglob("*.py")
        for test in named.findall(path.read_text(encoding="utf-8")) if not (ROOT / test).exists()
    ] == []  # fmt: skip


def test_named_modules_exist():
    """A page that names `app/engine/x.py` names a file that exists; the log names removed files, too."""
    named = re.compile(r"`((?:app|benchmarks|tests|tools)/[\w/]+\.\w+)`")
    assert [
        f"{page.name} names {path}" for page in PAGES_BY_HAND if page.name not in ("log.md", "CHANGELOG.md")
        for path in named.findall(page.read_text(encoding="utf-8")) if not (ROOT / path).exists() and "/x/" not in path
    ] == []  # fmt: skip


def test_docstrings_name_files_that_exist():
    """By the end of their path, as the map does."""
    named = re.compile(r"(?<![\w./-])(?:[\w-]+/)+[\w-]+\.(?:py|js|cpp|h|md|toml)\b")
    folders = ("app", "benchmarks", "docs", "tests", "tools")
    paths = {str(path) for folder in folders for path in (ROOT / folder).rglob("*.*")}
    assert [
        f"{module.path} names {file}" for module in [*modules(), *modules(ROOT / "benchmarks")]
        for node in ast.walk(module.tree) if isinstance(node, DOCUMENTED)
        for file in named.findall(ast.get_docstring(node) or "")
        if not any(path.endswith(f"/{file}") for path in paths)
    ] == []  # fmt: skip


def test_the_map_names_what_exists():
    """The architecture and its pages name files by the end of their path, some with what to look for: `x/y.py: Z.f`."""
    named = re.compile(r"`([\w/]+\.(?:py|js|h|cpp|html|toml))(?:: ([\w.]+))?`")
    folders = ("app", "benchmarks", "tests", "tools")
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*.*") if "vendor" not in path.parts]
    missing = []
    for page in [ROOT / "docs/architecture.md", *(ROOT / "docs/design").glob("*.md")]:
        for file, name in set(named.findall(page.read_text(encoding="utf-8"))):
            found = [path for path in paths if str(path).endswith(f"/{file}")]
            parts = [
                re.compile(rf"^ *(?:async def|def|class) {part}\b|^{part}\b.* = ", re.M) for part in name.split(".")
            ]
            texts = [path.read_text(encoding="utf-8") for path in found]
            if not (any(all(part.search(text) for part in parts) for text in texts) if name else found):
                missing.append(f"{page.name} names {file}: {name}")
    assert missing == []


def test_commands_of_the_readme_exist():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    from app.cli import COMMANDS

    lines = re.findall(r"^quire (\w+)(?: (\w+))?", readme, re.MULTILINE)
    named = {f"{one} {two}" if f"{one} {two}" in COMMANDS else one for one, two in lines}
    assert named == set(COMMANDS)
    for target in re.findall(r"^make (\w+)", readme, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)
