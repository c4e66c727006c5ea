"""Static checks of the page's files."""

import gzip
import hashlib
import json
import re
from pathlib import Path

import brotli
import pytest

from tests.house.source import ROOT

STATIC = ROOT / "app" / "static"
KINDS = {".js", ".css", ".html", ".svg"}
OURS = sorted(path for path in STATIC.rglob("*.*") if path.suffix in KINDS and STATIC / "vendor" not in path.parents)
MAX_PAGE_BYTES = 100_000
PACKAGES = {"highlight": "@highlightjs/cdn-assets"}  # names in the import map that are not those of packages
LAZY = {"dompurify", "highlight", "marked", "temml"}  # of no use to the first view


def imported(path: Path) -> set[Path]:
    """A module and all modules that the browser loads with it; those of `import()` are loaded later."""
    imports = json.loads(re.findall(r'importmap">(.*?)</script>', (STATIC / "index.html").read_text(), re.DOTALL)[0])
    found, new = set(), {path}
    while new:
        module = new.pop()
        found.add(module)
        for name in re.findall(r'^(?:import|export) (?:[^;"]*from )?"([^"]+)";?$', module.read_text(), re.MULTILINE):
            address = imports["imports"].get(name)
            new.add(ROOT / "app" / address.lstrip("/") if address else (module.parent / name).resolve())
        new -= found
    return found


def served() -> set[Path]:
    """Every file that a browser loads before the lazy parts."""
    page = (STATIC / "index.html").read_text()
    linked = {
        ROOT / "app" / address for address in re.findall(r'<link rel="(?:icon|stylesheet)".*href="/([^"]+)"', page)
    }
    return {STATIC / "index.html", *linked, *imported(STATIC / "app.js")}


def test_the_page_is_under_100_kb_before_its_lazy_parts() -> None:
    for name, size in (("gzip", len_gzip), ("brotli", len_brotli)):
        total = sum(map(size, served()))
        print(f"{total} bytes over the wire with {name}, in {len(served())} files")
        assert total < MAX_PAGE_BYTES


def len_gzip(path: Path) -> int:
    """Bytes as a checkout sends it."""
    return len(gzip.compress(path.read_bytes(), 6))


def len_brotli(path: Path) -> int:
    """Bytes as a wheel sends it."""
    return len(brotli.compress(path.read_bytes(), quality=11))


def test_the_lazy_parts_are_lazy() -> None:
    names = {path.name for path in served()}
    assert {"app.js", "page.js", "library.js", "answer_view.js"} < names
    assert names.isdisjoint(
        {
            "sidebar.js",
            "sidebar.css",
            "titler.js",
            "days.js",
            "excerpt.js",
            "found_place.js",
            "editor.js",
            "panel.js",
            "model_sheet.js",
            "transfer.js",
            "copies.js",
            "http_connection.js",
            "context_meter.js",
            "help.js",
            "labels.js",
            "branches.js",
            "failure.js",
            "parts.css",
            "preload.js",
            "search.js",
            "key_form.js",
            "file_list.js",
            "context_choice.js",
            "cut_mark.js",
            "announcer.js",
            "prose.js",
            "markdown.js",
            "blocks.js",
            "formulas.js",
            "code_blocks.js",
            "code_blocks.css",
            "maths.js",
            "maths.css",
            "tex.js",
        }
    )
    assert sum(path.parent.name == "vendor" for path in served()) == len(list(STATIC.glob("vendor/*.mjs"))) - len(LAZY)


def test_the_lazy_parts_are_loaded_before_they_are_needed_but_for_large_libraries() -> None:
    """The server may be away, or of another version, by the time that they are needed."""
    needed: set[Path] = set()
    for module in (path for path in OURS if path.suffix == ".js" and path.name != "preload.js"):
        text = module.read_text()
        imports = re.findall(r'import\("(\.[^"]+)"(?: \+ again)?\)(?!\.[A-Z])', text)
        needed |= {(module.parent / name).resolve() for name in imports}
        needed |= {STATIC / name for name in re.findall(r'"([\w./]+\.css)"', text)}
    preload = STATIC / "shell" / "preload.js"
    styles = {STATIC / name for name in re.findall(r'"([\w./]+\.css)"', preload.read_text())}
    assert {path.name for path in needed - imported(preload) - styles} == {"maths.js", "maths.css", "tex.js"}
    assert styles < needed
    assert not any(path.name.startswith(("highlight-", "temml-")) for path in imported(preload))


def test_no_two_modules_have_the_same_name() -> None:
    names = [path.name for path in OURS]
    assert sorted(set(names)) == sorted(names)


@pytest.mark.parametrize("path", [path for path in OURS if path.suffix == ".js"], ids=lambda path: path.name)
def test_every_import_names_a_file_or_the_import_map(path: Path) -> None:
    page = (STATIC / "index.html").read_text()
    for name in re.findall(r'(?:from|import\() ?"([^"]+)"', path.read_text()):
        assert (path.parent / name).is_file() if name.startswith(".") else f'"{name}":' in page, name


def test_the_import_map_names_the_locked_versions_and_their_files() -> None:
    page = (STATIC / "index.html").read_text()
    (inline,) = re.findall(r"<script type=\"importmap\">(.*?)</script>", page, re.DOTALL)
    versions = json.loads((ROOT / "package.json").read_text())["dependencies"]
    for name, address in json.loads(inline)["imports"].items():
        package = PACKAGES.get(name, name.split("/")[0])
        assert address == f"/static/vendor/{name.replace('/', '-')}-{versions[package]}.mjs"
        assert (f'<link rel="modulepreload" href="{address}">' in page) == (name not in LAZY)
        assert (ROOT / "app" / address.lstrip("/")).is_file()


def test_the_font_of_formulas_is_the_locked_one() -> None:
    (address,) = re.findall(r'url\("([^"]+)"\)', (STATIC / "reading" / "maths.css").read_text())
    version = json.loads((ROOT / "package.json").read_text())["dependencies"]["@fontsource/stix-two-math"]
    assert address == f"/static/vendor/stix-two-math-{version}.woff2"
    font = (ROOT / "app" / address.lstrip("/")).read_bytes()
    assert font.startswith(b"wOF2") and len(font) < 450_000


def test_the_import_map_is_the_only_inline_script_and_there_is_no_inline_style() -> None:
    page = (STATIC / "index.html").read_text()
    assert re.findall(r"<script(?![^>]*src=)[^>]*>", page) == ['<script type="importmap">']
    assert not re.search(r"<style|\sstyle=|\son\w+=", page)


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.name)
def test_only_markdown_js_makes_html_from_text(path: Path) -> None:
    """But for the frame of previews, whose document is of no origin."""
    if path.name not in ("markdown.js", "preview.html"):
        text = path.read_text()
        makers = r"innerHTML|outerHTML|insertAdjacentHTML|dangerouslySetInnerHTML|document\.write|\beval\(|new Function"
        assert re.findall(makers, text) == []


def test_markdown_js_assigns_innerhtml_only_from_dompurify() -> None:
    assignments = re.findall(r"innerHTML.*", (STATIC / "reading" / "markdown.js").read_text())
    assert [line for line in assignments if "=" in line] == [
        "innerHTML = DOMPurify.sanitize(unsafeHtml, ALLOWED);",
        "innerHTML = DOMPurify.sanitize(unsafeHtml, ALLOWED_IN_CODE);",
    ]


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.name)
def test_no_file_names_another_host(path: Path) -> None:
    text = re.sub(r"http://www\.w3\.org/(2000/svg|1998/Math/MathML)", "", path.read_text())
    assert re.findall(r"(?:https?:)?//[\w.-]+\.\w+", text) == []


def test_the_lock_file_pins_hashes_and_names_no_registry() -> None:
    packages = json.loads((ROOT / "package-lock.json").read_text())["packages"]
    own = packages.pop("")
    for kind in ("dependencies", "devDependencies"):
        assert own[kind] == json.loads((ROOT / "package.json").read_text())[kind]
        assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) for version in own[kind].values())
    assert all(package["integrity"].startswith("sha512-") for package in packages.values())
    assert not any("resolved" in package for package in packages.values())


def test_the_vendor_folder_was_built_from_this_lock_file() -> None:
    manifest = json.loads((STATIC / "vendor" / "manifest.json").read_text())
    assert manifest["lock"] == hashlib.sha256((ROOT / "package-lock.json").read_bytes()).hexdigest()
    assert set(manifest["files"]) == {path.name for path in (STATIC / "vendor").iterdir()} - {"manifest.json"}
    for name, sha256 in manifest["files"].items():
        assert hashlib.sha256((STATIC / "vendor" / name).read_bytes()).hexdigest() == sha256


def test_the_vendor_folder_has_the_licences_of_all_libraries() -> None:
    licences = (STATIC / "vendor" / "THIRD_PARTY_LICENSES").read_text()
    for name, version in json.loads((ROOT / "package.json").read_text())["dependencies"].items():
        assert f"{name} {version} (" in licences
