"""The chat page and its files."""

import base64
import gzip
import hashlib
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from app.api.page import STATIC_DIR, Page, content_security_policy
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
        "require-trusted-types-for 'script'; trusted-types dompurify"
    )


def test_a_page_without_an_import_map_allows_no_inline_script():
    assert "script-src 'self'; " in content_security_policy(b"<!doctype html>")


class CountedGzip:
    """Counts the bytes that are compressed, and at which levels."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.num_bytes, self.levels = 0, set[int]()
        self._compress = gzip.compress
        monkeypatch.setattr(gzip, "compress", self)

    def __call__(self, data: bytes, level: int, **options: Any) -> bytes:
        self.num_bytes += len(data)
        self.levels.add(level)
        return self._compress(data, level, **options)


def test_a_checkout_compresses_little_at_startup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """At level 6, a megabyte takes about 40 ms."""
    folder = tmp_path / "static"
    shutil.copytree(STATIC_DIR, folder, ignore=shutil.ignore_patterns("compressed"))
    counted = CountedGzip(monkeypatch)
    Page(folder)
    assert 0 < counted.num_bytes < 1_500_000 and counted.levels == {6}


def test_what_a_wheel_has_compressed_is_not_compressed_at_startup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = copied(tmp_path)
    (folder / "compressed").mkdir()
    content = (folder / "app.js").read_bytes()
    counted = CountedGzip(monkeypatch)
    Page(folder)
    of_all = counted.num_bytes
    (folder / "compressed" / f"{hashlib.sha256(content).hexdigest()}.gz").write_bytes(b"by gzip")
    Page(folder)
    assert counted.num_bytes == 2 * of_all - len(content)


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
    ("accepted", "encoding"),
    [("gzip, deflate, br", "gzip"), ("gzip;q=0", None), ("*", "gzip"), ("*;q=0.0", None), ("identity", None),
     ("", None), ("GZIP ; q=0.5", "gzip"), ("br;q=1, *;q=0", None)],
)  # fmt: skip
async def test_files_are_compressed_for_browsers_that_accept_it(client, accepted, encoding):
    plain = await client.get("/static/app.js", headers={"accept-encoding": "identity"})
    answer = await client.get("/static/app.js", headers={"accept-encoding": accepted})
    assert answer.headers.get("content-encoding") == encoding
    assert answer.headers["vary"] == "Accept-Encoding"
    assert answer.content == plain.content  # httpx has decoded it
    assert (answer.headers["etag"] == plain.headers["etag"]) == (encoding is None)
    if encoding:
        assert int(answer.headers["content-length"]) < int(plain.headers["content-length"])


def test_a_compressed_copy_is_used_for_exactly_its_content_only(tmp_path: Path):
    folder = copied(tmp_path)
    content = (folder / "app.js").read_bytes()
    (folder / "compressed").mkdir()
    (folder / "compressed" / f"{hashlib.sha256(content).hexdigest()}.br").write_bytes(b"by brotli")
    asked = ("gzip, br", "", "no-cache")
    assert page_file(folder, "app.js").response(*asked).body == b"by brotli"
    (folder / "app.js").write_bytes(content + b"three();")
    changed = page_file(folder, "app.js").response(*asked)
    assert changed.headers["content-encoding"] == "gzip"
    assert gzip.decompress(bytes(changed.body)) == content + b"three();"
    assert page_file(folder, "compressed") is None


def page_file(folder: Path, name: str) -> Any:
    """A file of the page in a folder, or None."""
    return Page(folder)._files.get(name)


@pytest.mark.parametrize(
    "path",
    ["/static/", "/static/..%2f..%2fapp.py", "/static/%2e%2e/api/page.py", "/static/%00", "/static/vendor%5chtm",
     "/static//etc/passwd", "/static/vendor", "/static/APP.JS", "/static/compressed"],
)  # fmt: skip
async def test_no_path_reaches_outside_the_static_folder(client, path):
    answer = await client.get(path)
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "not_found"


async def test_head_returns_headers_without_a_body(client):
    answer = await client.head("/")
    assert (answer.status_code, answer.content) == (200, b"")
