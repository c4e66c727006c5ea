"""Where pip would look for a file: its configuration, folders, pages of links, and indexes in HTML and JSON."""

from __future__ import annotations

import base64
import json
import os
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from app.checkpoint.hub.package_index import PYPI, PipConfig, find_file, open_file, read_pip_config
from app.contract.errors import Unreachable

FILE = "thing-1.0-py3-none-any.whl"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home without a configuration of pip."""
    for name in os.environ:
        if name.startswith(("PIP_", "XDG_")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_DIRS", str(tmp_path / "etc"))
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "venv"))
    return tmp_path


@pytest.fixture
def pages() -> Iterator[dict[str, tuple[str, str]]]:
    """Pages of a server by path: (type, content), where URL stands for its address; `asked` has the requests."""
    served: dict[str, Any] = {"asked": []}

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

        def do_GET(self) -> None:
            served["asked"].append((self.path, dict(self.headers)))
            kind, content = served.get(self.path, ("", ""))
            self.send_response(302 if kind == "to" else 200 if kind else 404)
            self.send_header("Location" if kind == "to" else "Content-Type", content if kind == "to" else kind)
            self.end_headers()
            self.wfile.write(content.encode())

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    served["url"] = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield served
    server.shutdown()
    thread.join()
    server.server_close()


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_without_a_configuration_it_is_pypi(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    assert read_pip_config() == PipConfig((PYPI,))


def test_later_files_win_and_variables_win_over_files(home: Path, monkeypatch: pytest.MonkeyPatch):
    write(home / "etc/pip/pip.conf", "[global]\nindex-url = http://system/simple\n")
    write(home / ".config/pip/pip.conf", "[install]\nextra_index_url = http://b/simple\n    http://c/simple\n")
    write(home / "venv/pip.conf", "[global]\nindex-url = http://site/simple\n[list]\nindex-url = http://other\n")
    write(home / ".pip/pip.conf", "[global]\ncert = /legacy.pem\n")
    config = read_pip_config()
    assert config.indexes == ("http://site/simple", "http://b/simple", "http://c/simple")
    assert config.cert == "/legacy.pem"
    write(home / "mine.conf", "[global]\nindex-url = http://mine\nproxy = http://proxy:1\nfind-links = /wheels\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(home / "mine.conf"))
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "http://d")
    assert read_pip_config() == PipConfig(("http://mine", "http://d"), ("/wheels",), "/legacy.pem", "http://proxy:1")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    assert read_pip_config().indexes == ()


def test_a_damaged_configuration_is_ignored(home: Path):
    write(home / ".config/pip/pip.conf", "no section\n")
    assert PYPI in read_pip_config().indexes


@pytest.mark.parametrize("as_url", [False, True])
def test_a_folder_of_wheels_is_looked_into(tmp_path: Path, as_url: bool):
    folder = tmp_path / "my wheels"
    write(folder / FILE, "wheel")
    url = find_file("thing", FILE, PipConfig((), (folder.as_uri() if as_url else str(folder),)))
    with open_file(url, 0, PipConfig().opener()) as response:
        assert response.read() == b"wheel"


def test_a_local_index_is_read_from_its_pages(tmp_path: Path):
    write(tmp_path / "simple/thing/index.html", f'<a href="../../files/{FILE}#sha256=00">{FILE}</a>')
    index = (tmp_path / "simple").as_uri()
    assert find_file("thing", FILE, PipConfig((index,))) == (tmp_path / "files" / FILE).as_uri()


@pytest.mark.parametrize(("kind", "content"), [
    ("text/html", f'<html><base href="/files/"><a href="other.whl">x</a><A HREF="{FILE}#sha256=00">{FILE}</A>'),
    ("application/vnd.pypi.simple.v1+json", json.dumps({"files": [{"filename": FILE, "url": f"/files/{FILE}"}]})),
])  # fmt: skip
def test_an_index_is_read_as_html_and_as_json(pages: dict[str, Any], kind: str, content: str):
    pages["/simple/thing/"] = (kind, content)
    pages[f"/files/{FILE}"] = ("application/zip", "wheel")
    config = PipConfig((f"{pages['url']}/nothing", f"{pages['url']}/simple"))
    url = find_file("thing", FILE, config)
    assert url == f"{pages['url']}/files/{FILE}"
    with open_file(url, 3, config.opener()) as response:
        assert response.read() == b"wheel"
    assert pages["asked"][-1][1]["Range"] == "bytes=3-"


def test_a_password_is_sent_to_the_index_alone(pages: dict[str, Any]):
    other = pages["url"].replace("127.0.0.1", "localhost")
    pages["/simple/thing/"] = ("text/html", f'<a href="/files/{FILE}">x</a>')
    pages[f"/files/{FILE}"] = ("to", f"{other}/cdn")
    pages["/cdn"] = ("application/zip", "wheel")
    config = PipConfig((pages["url"].replace("//", "//me:p%40ss@") + "/simple",))
    with open_file(find_file("thing", FILE, config), 0, config.opener()) as response:
        assert response.read() == b"wheel"
    login = "Basic " + base64.b64encode(b"me:p@ss").decode()
    assert [headers.get("Authorization") for _, headers in pages["asked"]] == [login, login, None]


def test_a_file_that_no_index_has_is_said_without_passwords(pages: dict[str, Any]):
    pages["/simple/thing/"] = ("text/html", "nothing")
    refused = "http://me:secret@127.0.0.1:9/simple"
    with pytest.raises(Unreachable, match="is in none of pip's package indexes") as refusal:
        find_file("thing", FILE, PipConfig((f"{pages['url']}/simple", refused)))
    assert "127.0.0.1:9/simple/thing/: Connection refused" in refusal.value.message
    assert "secret" not in refusal.value.message


@pytest.mark.parametrize("content", [
    '{"detail": "Not Found"}', "[]", "null", '{"files": 1}', '{"files": [1]}', '{"files": [{"url": null}]}',
    '{"files": [{"url": 5}]}', '{"files": {"url": "x"}}', "[" * 10**5, "<html>",
])  # fmt: skip
def test_json_that_lists_no_files_is_a_problem_of_its_index(pages: dict[str, Any], content: str):
    pages["/broken/thing/"] = ("application/json", content)
    with pytest.raises(Unreachable) as refusal:
        find_file("thing", FILE, PipConfig((f"{pages['url']}/broken",)))
    assert f"({pages['url']}/broken/thing/: its JSON is no list of files)" in refusal.value.message
    assert refusal.value.exit_code == 75
    pages["/simple/thing/"] = ("text/html", f'<a href="/files/{FILE}">x</a>')
    config = PipConfig((f"{pages['url']}/broken", f"{pages['url']}/simple"))
    assert find_file("thing", FILE, config) == f"{pages['url']}/files/{FILE}", "the other indexes are asked"


def test_html_and_addresses_that_cannot_be_parsed_are_said_in_one_line(pages: dict[str, Any]):
    pages["/simple/thing/"] = ("text/html", "<![unknown[")
    with pytest.raises(Unreachable, match="/simple/thing/: unknown status keyword"):
        find_file("thing", FILE, PipConfig((f"{pages['url']}/simple",)))
    with pytest.raises(Unreachable, match="An address in pip's configuration cannot be read: Invalid IPv6 URL"):
        find_file("thing", FILE, PipConfig(("http://me:secret@[::1",)))


def test_other_kinds_of_addresses_are_not_opened():
    with pytest.raises(OSError, match="ftp:, which is not supported"):
        open_file("ftp://x/y", 0, PipConfig().opener())
