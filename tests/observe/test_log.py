"""The JSON log: one line per record, with any contents."""

import io
import json
import logging

import pytest

from app.observe.log import json_line, log_request
from app.observe.log_output import configure_logging
from app.observe.log_writer import LogWriter

HANG_S = 60


class LogStream(io.StringIO):
    """The stream of a configured log, which has every line when it is read."""

    def __init__(self, **options: int) -> None:
        super().__init__()
        self.writer = LogWriter()
        configure_logging(self, self.writer, **options)

    def getvalue(self) -> str:
        assert self.writer.flush(HANG_S)
        return super().getvalue()


@pytest.fixture
def stream():
    """A configured log; the previous configuration is restored."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield LogStream()
    root.handlers[:], root.level = handlers, level


def test_a_request_is_one_line_with_its_fields(stream):
    log_request(method="GET", path="/x", status=200, reason=None)
    line = json.loads(stream.getvalue())
    assert (line["logger"], line["message"], line["level"]) == ("quire.access", "request", "info")
    assert (line["method"], line["path"], line["status"], line["reason"]) == ("GET", "/x", 200, None)
    assert line["time"].endswith("+00:00")


@pytest.mark.parametrize("path", ["/a\nb", '/"}\r\n{"', "/\x1b[31mred", "/\x9b31m", "/\u2028", "/\x00"])
def test_no_path_can_forge_a_json_line_or_control_a_terminal(stream, path):
    log_request(path=path)
    (line,) = stream.getvalue().splitlines()
    assert line.isascii() and line.isprintable()
    assert json.loads(line)["path"] == path


def test_routine_requests_are_logged_at_level_debug_only(stream):
    log_request(is_routine=True, path="/livez")
    assert stream.getvalue() == ""
    everything = LogStream(level=logging.DEBUG)
    log_request(is_routine=True, path="/livez")
    lines = [json.loads(line) for line in everything.getvalue().splitlines()]  # asyncio may log, too
    assert [line["path"] for line in lines if line["logger"] == "quire.access"] == ["/livez"]


def test_an_exception_is_part_of_its_line(stream):
    try:
        raise ValueError("what happened")
    except ValueError:
        logging.getLogger("x").exception("it went wrong")
    (line,) = stream.getvalue().splitlines()
    assert "what happened" in json.loads(line)["exception"]


def test_a_second_configuration_replaces_the_first(stream):
    second = LogStream()
    log_request(path="/x")
    assert stream.getvalue() == ""
    assert len(second.getvalue().splitlines()) == 1


def test_json_line_gives_the_format_of_the_log(stream):
    log_request(path="/x")
    own = json.loads(stream.getvalue())
    made = json.loads(json_line("INFO", "quire.access", "request", {"path": "/x"}, created=0.0))
    assert list(made) == list(own)
    assert made == own | {"time": "1970-01-01T00:00:00.000+00:00"}
