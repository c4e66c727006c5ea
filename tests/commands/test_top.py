"""`quire top` on a fake server and on a real one, on a terminal and in a pipe."""

import http.server
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest

from app.client.opening import ServerRefused
from app.commands.watching.figures_stream import FiguresStream
from app.config.base_url import read_base_url
from app.contract.errors import CannotStart, ConfigurationError
from tests.commands.dialog.typist import typing
from tests.server.quick_start import quire, serving
from tests.streaming.live.pictures import FIGURES

EVENT = b"data: " + msgspec.json.encode(FIGURES) + b"\n\n"


@contextmanager
def fake_server(*pieces: bytes, status: int = 200) -> Iterator[str]:
    """A server that answers each request with a status and these pieces, and hangs up; yields its URL."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(f"{self.path} {self.headers.get('authorization')}")
            self.send_response(status)
            self.end_headers()
            for piece in pieces:
                self.wfile.write(piece)

        def log_message(self, *_: object) -> None:
            """Write no log."""

    asked.clear()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


asked: list[str] = []


def stream_of(url: str, key: str | None = None) -> FiguresStream:
    return FiguresStream(read_base_url(url, "--url"), key, 0.5)


def test_figures_are_read_and_comments_are_not():
    with fake_server(b": ping\n\n", EVENT[:100], EVENT[100:] + EVENT) as url:
        stream = stream_of(url, "sheet")
        assert stream.read() == FIGURES and stream.read() == FIGURES
        with pytest.raises(CannotStart, match="has ended its stream of figures"):
            stream.read()
    assert asked == ["/v1/engine/events?interval=0.5 Bearer sheet"]


def test_fields_of_a_later_version_are_ignored_and_missing_ones_are_said():
    more = b'data: {"later": [1], ' + msgspec.json.encode(FIGURES)[1:] + b"\n\n"
    with fake_server(more, b'data: {"model": "x"}\n\n') as url:
        stream = stream_of(url)
        assert stream.read() == FIGURES
        with pytest.raises(CannotStart, match="other figures than this version"):
            stream.read()


@pytest.mark.parametrize(("status", "kind", "words"), [
    (401, ConfigurationError, "needs an API key; give its own with --api-key KEY"),
    (404, ServerRefused, "the server returned status 404"),
    (429, ServerRefused, "the server returned status 429"),
])  # fmt: skip
def test_refusals_are_said(status, kind, words):
    with fake_server(b"", status=status) as url, pytest.raises(kind, match=words):
        stream_of(url).read()


def test_in_a_pipe_there_is_a_line_for_each():
    with fake_server(EVENT, EVENT) as url:
        result = quire("top", url)
    line = (
        "guide ready: 1 running, 0 waiting, 0 paused, 410.5 tokens/s, 3 of 16 blocks used, 1 cached, first token -, "
        "between tokens -, cache hits 25%"
    )
    assert result.stdout.splitlines() == [line, line]
    assert result.returncode == 75 and "has ended its stream of figures" in result.stderr


@pytest.mark.parametrize(("arguments", "code", "words"), [
    (["--url", "http://127.0.0.1:9"], 75, "cannot reach http://127.0.0.1:9"),
    (["--url", "ftp://x"], 2, "ftp"),
    (["http://x", "--url", "http://y"], 2, "the server is given twice, by URL and by --url; leave one out"),
    (["--interval", "x"], 2, "--interval is 'x'; it must be a number (see quire top --help)"),
    (["--interval", "0.01"], 2, "--interval is 0.01; it must be a number of seconds from 0.2 to 60."),
    (["--url", "http://127.0.0.1:9", "--api-key", "a\nb"], 2, "characters that HTTP cannot send"),
])  # fmt: skip
def test_errors_are_one_line(arguments, code, words):
    result = quire("top", *arguments)
    assert (result.returncode, result.stdout) == (code, "")
    assert words in result.stderr and len(result.stderr.splitlines()) == 1


def test_on_a_terminal_q_quits_a_real_server_s_figures():
    with serving("--num-kv-blocks", "128") as server:
        server.wait_until_ready()
        with typing("top", "--url", server.url, "--interval", "0.2") as typist:
            typist.wait_for("tokens/s")
            typist.wait_for("128 blocks")
            typist.wait_for("q quits")
            typist.type("x")
            typist.wait_for("tokens/s")
            typist.type("q")
            assert typist.end() == 0
        command = [sys.executable, "-m", "app", "top", "--url", server.url]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("guide ready: 0 running")
            process.kill()
