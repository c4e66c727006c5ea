"""The text log: readable lines, colours only on terminals, and no forged lines."""

import io
import json
import logging
import threading

import pytest

from app.observe.log import log_request
from app.observe.log_output import configure_logging
from app.observe.log_writer import LogWriter
from tests.observe.terminals import Terminal

HANG_S = 60
REQUEST = {
    "request_id": "r-1", "session_id": None, "client": "127.0.0.1", "method": "POST", "path": "/v1/completions",
    "status": 200, "reason": "length", "duration_ms": 312.4, "completion_tokens": 12,
}  # fmt: skip


class Log:
    """The configured log of a test, on a stream in memory."""

    def __init__(self) -> None:
        self.writer = LogWriter()

    def __call__(self, stream, *arguments, **options):
        """Configure the log."""
        self.stream = stream
        return configure_logging(stream, self.writer, *arguments, **{"environ": {}} | options)

    def text(self) -> str:
        """What was logged so far."""
        assert self.writer.flush(HANG_S)
        return self.stream.getvalue()


@pytest.fixture
def configure():
    """Configures the log; the previous configuration is restored."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    log = Log()
    yield log
    log.writer.close(HANG_S)
    root.handlers[:], root.level = handlers, level


def test_a_request_is_one_readable_line(configure):
    stream = io.StringIO()
    configure(stream, "text")
    log_request(**REQUEST)
    clock, level, rest = configure.text().rstrip().split(maxsplit=2)
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
    assert configure.text().startswith("{") is is_json
    if is_json:
        assert json.loads(configure.text())["path"] == "/v1/completions"


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
    assert ("\x1b[" in configure.text()) is expected


@pytest.mark.parametrize("path", ["/a\nb", "/\x1b[31mred", "/\x9b31m", "/\u2028", "/\x00", "/\u202egpj.exe", "/\udc80"])
def test_no_path_can_forge_a_text_line_or_control_a_terminal(configure, path):
    stream = io.StringIO()
    configure(stream, "text")
    log_request(**REQUEST | {"path": path})
    logging.getLogger("x").info("asked for %s", path)
    lines = configure.text().split("\n")
    assert len(lines) == 3 and all(line.isprintable() for line in lines)


def test_an_exception_follows_on_indented_lines(configure):
    stream = io.StringIO()
    configure(stream, "text")
    try:
        raise ValueError("first\n12:00:00 info    GET /forged 200")
    except ValueError:
        logging.getLogger("x").exception("it went wrong")
    first, *others = configure.text().splitlines()
    assert first.endswith("error   it went wrong")
    assert any("ValueError: first" in line for line in others) and all(line.startswith("    ") for line in others)


def test_before_write_is_called_before_each_line_is_queued(configure):
    stream = io.StringIO()
    configure(stream, before_write=lambda: configure.writer.put(stream, "cleared\n"))
    for text in ("one", "two"):
        logging.getLogger("x").warning(text)
    assert [line[:7] for line in configure.text().splitlines()] == ["cleared", '{"time"'] * 2


def test_a_record_is_complete_when_it_is_queued(configure):
    """Its arguments and its exception may change before the writer's thread comes to them."""
    configure(io.StringIO())
    may_write = threading.Event()
    configure.writer.put(configure.stream, lambda: "" if may_write.wait(HANG_S) else "never")
    values, error = [1], ValueError("as it was")
    logging.getLogger("x").warning("values: %s", values)
    logging.getLogger("x").warning(values)
    logging.getLogger("x").warning("an error", exc_info=error)
    values.append(2)
    error.args = ("changed",)
    may_write.set()
    first, second, third = map(json.loads, configure.text().splitlines())
    assert (first["message"], second["message"]) == ("values: [1]", "[1]")
    assert third["exception"] == "ValueError: as it was"


def test_other_handlers_get_the_record_with_its_arguments_and_exception(configure):
    configure(io.StringIO())
    seen: list[logging.LogRecord] = []
    other = logging.Handler()
    other.emit = seen.append
    logging.getLogger().addHandler(other)
    error = ValueError()
    logging.getLogger("x").warning("%s", 1, exc_info=error)
    (record,) = seen
    assert record.args == (1,) and record.exc_info and record.exc_info[1] is error


def test_a_record_that_cannot_be_formatted_is_reported_and_the_next_is_written(configure, capsys):
    class Unprintable:
        def __str__(self) -> str:
            raise ValueError("no text")

    configure(io.StringIO())
    log_request(path=Unprintable())
    log_request(path="/x")
    assert json.loads(configure.text())["path"] == "/x"
    assert "no text" in capsys.readouterr().err


def test_the_number_of_dropped_records_is_a_line_of_the_log(configure):
    stream = io.StringIO()
    configure.writer = LogWriter(max_lines=1)
    configure(stream)
    may_write = threading.Event()
    configure.writer.put(stream, lambda: "" if may_write.wait(HANG_S) else "never")
    for _ in range(1500):
        log_request(path="/x")
    may_write.set()
    line = json.loads(configure.text())
    assert (line["level"], line["logger"]) == ("warning", "quire.log")
    assert line["message"] == "1,500 lines of the log were dropped: nothing read them in time"


def test_the_first_rejection_while_loading_is_logged_and_the_others_are_counted(configure):
    stream = io.StringIO()
    configure(stream)
    for _ in range(100):
        log_request(method="POST", path="/v1/completions", status=503, reason="model_loading")
        logging.getLogger("quire.engine").info("loading")
    log_request(**REQUEST)
    log_request(**REQUEST)
    lines = [json.loads(line) for line in configure.text().splitlines()]
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
        configure.writer = LogWriter()
