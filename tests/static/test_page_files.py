"""Static checks of the page's files."""

import gzip
import hashlib
import json
import re
from pathlib import Path

import pytest

from tests.house.source import ROOT

STATIC = ROOT / "app" / "static"
OURS = sorted(path for path in STATIC.glob("*.*") if path.suffix in {".js", ".css", ".html", ".svg"})
MAX_PAGE_BYTES = 100_000


def served() -> list[Path]:
    """Every file that a browser loads for the page."""
    return [*OURS, *STATIC.glob("vendor/*.mjs")]


def test_the_page_is_under_100_kb_gzip() -> None:
    assert sum(len(gzip.compress(path.read_bytes())) for path in served()) < MAX_PAGE_BYTES


def test_the_import_map_names_the_locked_versions_and_their_files() -> None:
    page = (STATIC / "index.html").read_text()
    (inline,) = re.findall(r"<script type=\"importmap\">(.*?)</script>", page, re.DOTALL)
    versions = json.loads((ROOT / "package.json").read_text())["dependencies"]
    for name, address in json.loads(inline)["imports"].items():
        package = name.split("/")[0]
        assert address == f"/static/vendor/{name.replace('/', '-')}-{versions[package]}.mjs"
        assert f'<link rel="modulepreload" href="{address}">' in page
        assert (ROOT / "app" / address.lstrip("/")).is_file()


def test_the_import_map_is_the_only_inline_script_and_there_is_no_inline_style() -> None:
    page = (STATIC / "index.html").read_text()
    assert re.findall(r"<script(?![^>]*src=)[^>]*>", page) == ['<script type="importmap">']
    assert not re.search(r"<style|\sstyle=|\son\w+=", page)


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.name)
def test_only_markdown_js_makes_html_from_text(path: Path) -> None:
    if path.name != "markdown.js":
        text = path.read_text()
        makers = r"innerHTML|outerHTML|insertAdjacentHTML|dangerouslySetInnerHTML|document\.write|\beval\(|new Function"
        assert re.findall(makers, text) == []


def test_markdown_js_assigns_innerhtml_only_from_dompurify() -> None:
    assignments = re.findall(r"innerHTML.*", (STATIC / "markdown.js").read_text())
    assert [line for line in assignments if "=" in line] == [
        "innerHTML = DOMPurify.sanitize(unsafeHtml, ALLOWED);",
    ]


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.name)
def test_no_file_names_another_host(path: Path) -> None:
    text = path.read_text().replace("http://www.w3.org/2000/svg", "")
    assert re.findall(r"(?:https?:)?//[\w.-]+\.\w+", text) == []


def test_the_lock_file_pins_hashes_and_names_no_registry() -> None:
    packages = json.loads((ROOT / "package-lock.json").read_text())["packages"]
    own = packages.pop("")
    assert own["dependencies"] == json.loads((ROOT / "package.json").read_text())["dependencies"]
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) for version in own["dependencies"].values())
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
