"""The chat page and its files."""

import base64
import hashlib
import re
from pathlib import Path

import pytest

from app.api.http.static_file import STATIC_DIR
from app.api.routes.page import Page, content_security_policy
from tests.api.serving import client_of, make_app


@pytest.fixture
async def client():
    async with client_of(await make_app()) as client:
        yield client


async def test_the_content_security_policy_has_the_hash_of_the_import_map(client):
    answer = await client.get("/")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    import_map = re.search(r'<script type="importmap">(.*?)</script>', answer.text, re.DOTALL)
    assert import_map is not None
    digest = base64.b64encode(hashlib.sha256(import_map[1].encode()).digest()).decode()
    assert answer.headers["content-security-policy"] == (
        f"default-src 'none'; script-src 'self' 'sha256-{digest}'; style-src 'self'; img-src 'self' data:; "
        "font-src 'self'; connect-src 'self'; frame-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types dompurify"
    )


def test_a_page_without_an_import_map_allows_no_inline_script():
    assert "script-src 'self'; " in content_security_policy(b"<!doctype html>")


async def test_every_static_file_is_served_unchanged(client):
    for path in STATIC_DIR.rglob("*"):
        name = path.relative_to(STATIC_DIR)
        if path.is_file() and name.parts[0] != "compressed" and name.name != "index.html":
            answer = await client.get(f"/static/{path.relative_to(STATIC_DIR).as_posix()}")
            assert answer.status_code == 200, path
            assert answer.content == path.read_bytes()
            assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    ("name", "media_type"),
    [("app.js", "text/javascript; charset=utf-8"), ("shell/page.css", "text/css; charset=utf-8"),
     ("quire.svg", "image/svg+xml"), ("vendor/THIRD_PARTY_LICENSES", "text/plain; charset=utf-8"),
     ("vendor/stix-two-math-5.3.0.woff2", "font/woff2"), ("engine/full_pool.bin", "application/octet-stream")],
)  # fmt: skip
async def test_files_have_their_content_type(client, name, media_type):
    assert (await client.get(f"/static/{name}")).headers["content-type"] == media_type


async def test_own_files_are_immutable_below_the_hash_of_all_of_them_and_index_is_revalidated(client):
    index = await client.get("/")
    assert index.headers["cache-control"] == "no-cache"
    addresses = re.findall(r'(?:src|href)="(/static/[^"]+)"', index.text)
    versions = {address.split("/")[2] for address in addresses} - {"vendor"}
    assert len(versions) == 1
    for address in addresses:
        answer = await client.get(address)
        assert answer.status_code == 200, address
        assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert (await client.get("/static/app.js")).headers["cache-control"] == "no-cache"
    assert (await client.get("/static/0123456789abcdef/app.js")).status_code == 404
    assert (await client.get(f"/static/{versions.pop()}/index.html")).headers["cache-control"] == "no-cache"


def copied(tmp_path: Path) -> Path:
    """A page of two files."""
    folder = tmp_path / "static"
    (folder / "vendor").mkdir(parents=True)
    (folder / "index.html").write_text('<script type="module" src="/static/app.js"></script>')
    (folder / "app.js").write_text("one();\n" * 100)
    (folder / "vendor" / "lib-1.0.0.mjs").write_text("export {}")
    return folder


def test_the_hash_changes_with_any_own_file_and_not_with_libraries(tmp_path: Path):
    folder = copied(tmp_path)
    first = Page(folder).version
    (folder / "vendor" / "lib-1.0.1.mjs").write_text("export {}")
    assert Page(folder).version == first
    (folder / "app.js").write_text("two();\n" * 100)
    assert Page(folder).version != first


@pytest.mark.parametrize(
    "path",
    ["/static/", "/static/..%2fcli.py", "/static/%2e%2e/api/routes/page.py", "/static/%00", "/static/vendor%5chtm",
     "/static//etc/passwd", "/static/vendor", "/static/APP.JS", "/static/compressed"],
)  # fmt: skip
async def test_no_path_reaches_outside_the_static_folder(client, path):
    answer = await client.get(path)
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "not_found"


async def test_head_returns_headers_without_a_body(client):
    answer = await client.head("/")
    assert (answer.status_code, answer.content) == (200, b"")
