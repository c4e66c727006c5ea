"""The chat page and its files."""

import base64
import hashlib
import re

import pytest

from app.api.page import STATIC_DIR, content_security_policy
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
        "font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types dompurify quire"
    )


def test_a_page_without_an_import_map_allows_no_inline_script():
    assert "script-src 'self'; " in content_security_policy(b"<!doctype html>")


async def test_every_static_file_is_served_unchanged(client):
    for path in STATIC_DIR.rglob("*"):
        if path.is_file():
            answer = await client.get(f"/static/{path.relative_to(STATIC_DIR).as_posix()}")
            assert answer.status_code == 200, path
            assert answer.content == path.read_bytes()
            assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    ("name", "media_type"),
    [("app.js", "text/javascript; charset=utf-8"), ("page.css", "text/css; charset=utf-8"),
     ("quire.svg", "image/svg+xml"), ("vendor/THIRD_PARTY_LICENSES", "text/plain; charset=utf-8")],
)  # fmt: skip
async def test_files_have_their_content_type(client, name, media_type):
    assert (await client.get(f"/static/{name}")).headers["content-type"] == media_type


async def test_an_unchanged_file_is_not_sent_again(client):
    first = await client.get("/static/app.js")
    again = await client.get("/static/app.js", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == first.headers["etag"]
    other = await client.get("/static/app.js", headers={"if-none-match": '"other"'})
    assert other.status_code == 200


async def test_versioned_files_are_immutable_and_others_are_revalidated(client):
    versioned = next(path.name for path in (STATIC_DIR / "vendor").iterdir() if path.suffix == ".mjs")
    assert "immutable" in (await client.get(f"/static/vendor/{versioned}")).headers["cache-control"]
    assert (await client.get("/static/app.js")).headers["cache-control"] == "no-cache"
    assert (await client.get("/")).headers["cache-control"] == "no-cache"


@pytest.mark.parametrize(
    "path",
    ["/static/", "/static/..%2f..%2fapp.py", "/static/%2e%2e/api/page.py", "/static/%00", "/static/vendor%5chtm",
     "/static//etc/passwd", "/static/vendor", "/static/APP.JS"],
)  # fmt: skip
async def test_no_path_reaches_outside_the_static_folder(client, path):
    answer = await client.get(path)
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "not_found"


async def test_head_returns_headers_without_a_body(client):
    answer = await client.head("/")
    assert (answer.status_code, answer.content) == (200, b"")
