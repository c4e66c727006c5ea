"""Files that are served from memory: their compressed copies and their tags."""

import gzip
import hashlib
import shutil
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request

from app.api.http.static_file import STATIC_DIR, StaticFile
from app.api.routes.page import Page
from tests.api.serving import client_of, make_app


@pytest.fixture
async def client():
    async with client_of(await make_app()) as client:
        yield client


def prepared(name: str, content: bytes, compressed: Path) -> StaticFile:
    """A file without a policy."""
    return StaticFile.prepare(name, content, "", compressed)


def request(accepted: str = "gzip, br") -> Request:
    """A GET of a browser that accepts these encodings."""
    return Request({"type": "http", "headers": [(b"accept-encoding", accepted.encode())]})


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
    content = b"one();\n" * 100
    counted = CountedGzip(monkeypatch)
    (tmp_path / f"{hashlib.sha256(content).hexdigest()}.gz").write_bytes(b"by gzip")
    prepared("app.js", content, tmp_path)
    assert counted.num_bytes == 0
    prepared("app.js", content + b"two();", tmp_path)
    assert counted.num_bytes == len(content) + 6


def test_a_font_is_not_compressed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    counted = CountedGzip(monkeypatch)
    font = prepared("vendor/font-1.0.0.woff2", b"0" * 100, tmp_path)
    assert (counted.num_bytes, font.encoded) == (0, {})
    assert "content-encoding" not in font.answer(request(), "no-cache").headers


async def test_an_unchanged_file_is_not_sent_again(client):
    first = await client.get("/static/app.js")
    again = await client.get("/static/app.js", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == first.headers["etag"]
    other = await client.get("/static/app.js", headers={"if-none-match": '"other"'})
    assert other.status_code == 200


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
    content = b"one();\n" * 100
    (tmp_path / f"{hashlib.sha256(content).hexdigest()}.br").write_bytes(b"by brotli")
    assert prepared("app.js", content, tmp_path).answer(request(), "no-cache").body == b"by brotli"
    changed = prepared("app.js", content + b"two();", tmp_path).answer(request(), "no-cache")
    assert changed.headers["content-encoding"] == "gzip"
    assert gzip.decompress(bytes(changed.body)) == content + b"two();"
