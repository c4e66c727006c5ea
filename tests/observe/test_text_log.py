"""The log for people: readable lines, colours only where they are wanted, and nothing a client can forge."""

import io
import json
import logging

import pytest

from app.observe.log import log_request
from app.observe.log_output import configure_logging
from tests.observe.test_console import Terminal

REQUEST = {
    "request_id": "r-1", "session_id": None, "client": "127.0.0.1", "method": "POST", "path": "/v1/completions",
    "status": 200, "reason": "length", "duration_ms": 312.4, "completion_tokens": 12,
}  # fmt: skip


@pytest.fixture
def configure():
    """Configures the log; the previous configuration comes back."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield lambda *arguments, **options: configure_logging(*arguments, **{"environ": {}} | options)
    root.handlers[:], root.level = handlers, level


def test_a_request_is_a_line_that_can_be_read(configure):
    stream = io.StringIO()
    configure(stream, "text")
    log_request(**REQUEST)
    clock, level, said = stream.getvalue().rstrip().split(maxsplit=2)
    assert clock.count(":") == 2 and level == "info"
    assert said == "POST /v1/completions 200 length 312 ms  request_id=r-1 client=127.0.0.1 completion_tokens=12"


@pytest.mark.parametrize(
    ("log_format", "stream", "is_json"),
    [
        ("auto", io.StringIO(), True),
        ("auto", Terminal(), False),
        ("json", Terminal(), True),
        ("text", io.StringIO(), False),
    ],
)
def test_the_form_is_the_streams_unless_it_is_named(configure, log_format, stream, is_json):
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
def test_colours_are_for_terminals_that_have_them_and_people_who_want_them(configure, stream, environ, expected):
    configure(stream, "text", environ=environ)
    logging.getLogger("x").warning("careful")
    assert ("\x1b[" in stream.getvalue()) is expected


@pytest.mark.parametrize("path", ["/a\nb", "/\x1b[31mred", "/\x9b31m", "/\u2028", "/\x00", "/\u202egpj.exe", "/\udc80"])
def test_no_path_forges_a_line_or_drives_a_terminal(configure, path):
    stream = io.StringIO()
    configure(stream, "text")
    log_request(**REQUEST | {"path": path})
    logging.getLogger("x").info("asked for %s", path)
    lines = stream.getvalue().split("\n")
    assert len(lines) == 3 and all(line.isprintable() for line in lines)


def test_an_exception_follows_on_lines_of_its_own_that_look_like_no_other(configure):
    stream = io.StringIO()
    configure(stream, "text")
    try:
        raise ValueError("first\n12:00:00 info    GET /forged 200")
    except ValueError:
        logging.getLogger("x").exception("it went wrong")
    first, *others = stream.getvalue().splitlines()
    assert first.endswith("error   it went wrong")
    assert any("ValueError: first" in line for line in others) and all(line.startswith("    ") for line in others)


def test_what_writes_to_the_same_terminal_is_told_before_each_line(configure):
    told: list[str] = []
    stream = io.StringIO()
    configure(stream, before_write=lambda: told.append(stream.getvalue()))
    logging.getLogger("x").warning("careful")
    assert told == [""]


def test_the_first_refusal_while_loading_is_a_line_and_the_rest_a_number(configure):
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
    assert access[1]["message"] == "99 more requests were refused while the model was loading"


def test_refusals_that_were_counted_are_told_at_the_end_and_a_single_one_is_not_told_twice(configure):
    for number, lines in ((1, 1), (3, 2)):
        stream = io.StringIO()
        configure(stream)
        for _ in range(number):
            log_request(status=503, reason="model_loading")
        logging.getLogger().handlers[0].close()
        assert len(stream.getvalue().splitlines()) == lines
