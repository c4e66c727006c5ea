"""The text log: readable lines, colours only on terminals, and no forged lines."""

import io
import json
import logging

import pytest

from app.observe.log import log_request
from app.observe.log_output import configure_logging
from tests.observe.terminals import Terminal

REQUEST = {
    "request_id": "r-1", "session_id": None, "client": "127.0.0.1", "method": "POST", "path": "/v1/completions",
    "status": 200, "reason": "length", "duration_ms": 312.4, "completion_tokens": 12,
}  # fmt: skip


@pytest.fixture
def configure():
    """Configures the log; the previous configuration is restored."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield lambda *arguments, **options: configure_logging(*arguments, **{"environ": {}} | options)
    root.handlers[:], root.level = handlers, level


def test_a_request_is_one_readable_line(configure):
    stream = io.StringIO()
    configure(stream, "text")
    log_request(**REQUEST)
    clock, level, rest = stream.getvalue().rstrip().split(maxsplit=2)
    assert clock.count(":") == 2 and level == "info"
    assert rest == "POST /v1/completions 200 length 312 ms  request_id=r-1 client=127.0.0.1 completion_tokens=12"


@pytest.mark.parametrize(
    ("log_format", "stream", "is_json"),
    [
        ("auto", io.StringIO(), True),
        ("auto", Terminal(), False),
        ("json", Terminal(), True),
        ("text", io.StringIO(), False),
    ],
)
def test_the_format_depends_on_the_stream_unless_it_is_given(configure, log_format, stream, is_json):
    configure(stream, log_format)
    log_request(**REQUEST)
    assert stream.getvalue().startswith("{") is is_json
    if is_json:
        assert json.loads(stream.getvalue())["path"] == "/v1/completions"


@pytest.mark.parametrize(
    ("stream", "environ", "expected"),
    [
        (Terminal(), {}, True),
        (Terminal(), {"NO_COLOR": "1"}, False),
        (Terminal(), {"TERM": "dumb"}, False),
        (io.StringIO(), {}, False),
    ],
)
def test_colours_need_a_capable_terminal_and_no_no_color(configure, stream, environ, expected):
    configure(stream, "text", environ=environ)
    logging.getLogger("x").warning("careful")
    assert ("\x1b[" in stream.getvalue()) is expected


@pytest.mark.parametrize("path", ["/a\nb", "/\x1b[31mred", "/\x9b31m", "/\u2028", "/\x00", "/\u202egpj.exe", "/\udc80"])
def test_no_path_can_forge_a_text_line_or_control_a_terminal(configure, path):
    stream = io.StringIO()
    configure(stream, "text")
    log_request(**REQUEST | {"path": path})
    logging.getLogger("x").info("asked for %s", path)
    lines = stream.getvalue().split("\n")
    assert len(lines) == 3 and all(line.isprintable() for line in lines)


def test_an_exception_follows_on_indented_lines(configure):
    stream = io.StringIO()
    configure(stream, "text")
    try:
        raise ValueError("first\n12:00:00 info    GET /forged 200")
    except ValueError:
        logging.getLogger("x").exception("it went wrong")
    first, *others = stream.getvalue().splitlines()
    assert first.endswith("error   it went wrong")
    assert any("ValueError: first" in line for line in others) and all(line.startswith("    ") for line in others)


def test_before_write_is_called_before_each_line(configure):
    written_before: list[str] = []
    stream = io.StringIO()
    configure(stream, before_write=lambda: written_before.append(stream.getvalue()))
    logging.getLogger("x").warning("careful")
    assert written_before == [""]


def test_the_first_rejection_while_loading_is_logged_and_the_others_are_counted(configure):
    stream = io.StringIO()
    configure(stream)
    for _ in range(100):
        log_request(method="POST", path="/v1/completions", status=503, reason="model_loading")
        logging.getLogger("quire.engine").info("loading")
    log_request(**REQUEST)
    log_request(**REQUEST)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    access = [line for line in lines if line["logger"] == "quire.access"]
    assert [line["reason"] for line in access] == ["model_loading", "model_loading", "length", "length"]
    assert access[1]["count"] == 99
    assert access[1]["message"] == "99 more requests were rejected while the model was loading"


def test_counted_rejections_are_logged_when_the_log_closes(configure):
    for number, lines in ((1, 1), (3, 2)):
        stream = io.StringIO()
        configure(stream)
        for _ in range(number):
            log_request(status=503, reason="model_loading")
        logging.getLogger().handlers[0].close()
        assert len(stream.getvalue().splitlines()) == lines
