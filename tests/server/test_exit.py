"""After SIGTERM a server ends in time, with its exit code, whatever one of its threads does."""

import json
import signal
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.server.processes import HANG_S, RunningServer
from tests.server.quick_start import serving

PROMISE_S = 4.0
SLACK_S = 30.0
"""For a busy machine; what hangs here hangs for ever."""
CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "What is Quire?"}], "temperature": 0}
ENDLESS = {**BODY, "stream": True, "ignore_eos": True, "max_tokens": 1900}


def hanging(kind: str) -> Sequence[str]:
    """The program of a server of `hanging.py`."""
    return ("tests.server.hanging", kind)


def sigterm(server: RunningServer, drain_timeout_s: float = 0.0) -> int:
    """Send SIGTERM and return the exit code; a process that breaks its promise raises TimeoutExpired."""
    server.process.send_signal(signal.SIGTERM)
    return server.process.wait(drain_timeout_s + PROMISE_S + SLACK_S)


def wait_for(stream: Any, text: str) -> str:
    """Read lines until one begins with `text`, and return it."""
    for line in stream:
        if line.startswith(text):
            return str(line)
    raise AssertionError(f"no line begins with {text!r}")


@contextmanager
def sent(server: RunningServer, body: dict[str, Any]) -> Iterator[socket.socket]:
    """Send a chat request whose response is not read."""
    url = urlsplit(server.url)
    content = json.dumps(body).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    with socket.create_connection((url.hostname, url.port), HANG_S) as connection:
        connection.sendall(f"{head}content-length: {len(content)}\r\n\r\n".encode() + content)
        yield connection


def test_an_idle_server():
    with serving() as server:
        server.wait_until_ready()
        assert sigterm(server) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_all_threads_for_text_work_for_ever(number):
    with serving(program=hanging("text"), stderr=PIPE) as server:
        server.wait_until_ready()
        with sent(server, BODY), sent(server, BODY | {"seed": 1}):
            wait_for(server.process.stderr, "hangs")
            server.process.send_signal(number)
            assert server.process.wait(PROMISE_S + SLACK_S) == 0


def test_a_step_that_never_ends():
    """The request is open: it has the drain timeout."""
    options = ("--drain-timeout", "1", "--watchdog-timeout", "0")
    with serving(*options, program=hanging("engine"), stderr=PIPE) as server:
        server.wait_until_ready()
        with sent(server, ENDLESS):
            wait_for(server.process.stderr, "hangs")
            assert sigterm(server, 1.0) == 0


def test_an_event_loop_that_is_blocked():
    with serving("--watchdog-timeout", "0", program=hanging("loop"), stderr=PIPE) as server:
        wait_for(server.process.stdout, "Ready")
        assert sigterm(server) == 0


def test_a_model_that_loads_for_ever():
    with serving(program=hanging("load")) as server:
        assert httpx.get(f"{server.url}/readyz", timeout=HANG_S).json()["status"] == "loading"
        assert sigterm(server) == 0


def test_a_client_that_does_not_read():
    with serving("--drain-timeout", "1") as server:
        server.wait_until_ready()
        with sent(server, ENDLESS | {"logprobs": True, "top_logprobs": 20}) as connection:
            connection.recv(1)
            assert sigterm(server, 1.0) == 0


def test_a_child_process_ends_too():
    with serving(program=hanging("child"), stderr=PIPE) as server:
        child = int(wait_for(server.process.stderr, "child").split()[1])
        server.wait_until_ready()
        assert Path(f"/proc/{child}").exists()
        assert sigterm(server) == 0
        assert is_gone(child)


def is_gone(process: int) -> bool:
    """Whether a process has ended; nobody may have asked for its exit code."""
    try:
        return ") Z " in Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return True


def test_a_log_that_nobody_reads_stops_neither_requests_nor_streams_nor_the_end():
    with serving("--drain-timeout", "1", stderr=PIPE) as server:
        server.wait_until_ready()
        with httpx.Client(base_url=server.url, timeout=HANG_S) as client:
            for _ in range(1000):
                assert client.get("/v1/models").status_code == 200
            with client.stream("POST", CHAT, json={**BODY, "stream": True}) as response:
                assert [line for line in response.iter_lines() if line][-1] == "data: [DONE]"
        assert sigterm(server, 1.0) == 0
        assert server.process.stderr is not None
        *lines, last = map(json.loads, server.process.stderr.read().splitlines())
        assert len(lines) < 1000
        assert last["message"].endswith("lines of the log were dropped: nothing read them in time")


def test_a_reader_of_the_log_that_comes_back_gets_the_number_of_dropped_lines():
    """And all lines before; the metric counts them as well."""
    with serving(program=hanging("log"), stderr=PIPE) as server:
        server.wait_until_ready()
        with httpx.Client(base_url=server.url, timeout=HANG_S) as client:
            for number in range(1000):
                assert client.get("/v1/models", headers={"x-request-id": str(number)}).status_code == 200
            metrics = client.get("/metrics").text
        (count,) = [line.rpartition(" ")[2] for line in metrics.splitlines() if line.startswith(DROPPED)]
        assert server.process.stderr is not None
        ids = []
        for line in map(json.loads, server.process.stderr):
            if "dropped" in line["message"]:
                break
            ids.append(line.get("request_id"))
        numbers = [int(name) for name in ids if name is not None and name.isdecimal()]
        assert numbers == list(range(len(numbers)))
        assert int(line["message"].split()[0].replace(",", "")) == int(float(count)) == 1000 - len(numbers)


DROPPED = "quire_log_records_dropped_total{"


def test_a_crash_report_has_room_in_a_log_that_nobody_reads():
    with serving("--watchdog-timeout", "2", program=hanging("flood"), stderr=PIPE) as server:
        assert server.end() == 70
        assert server.process.stderr is not None
        text = server.process.stderr.read()
    (report,) = [json.loads(line) for line in text.splitlines() if '"quire.watchdog"' in line]
    assert "event loop" in report["message"]
    assert "in hang_for_ever" in text
