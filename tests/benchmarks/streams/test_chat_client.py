"""The quire.v1 client parses frames in any split, checks numbers, answers pings, and grants credit."""

import json
import struct

import pytest

from benchmarks.streams.chat_client import ChatClient
from benchmarks.streams.control import Rejected
from benchmarks.streams.stream_check import Recorder, StreamCheck
from tests.benchmarks.streams.tokens import faults, token

SWITCH = b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\n\r\n"


def frame(opcode: int, payload: bytes) -> bytes:
    """A server's frame."""
    size = len(payload)
    if size < 126:
        return bytes([0x80 | opcode, size]) + payload
    if size < 1 << 16:
        return bytes([0x80 | opcode, 126]) + struct.pack(">H", size) + payload
    return bytes([0x80 | opcode, 127]) + struct.pack(">Q", size) + payload


def text(**fields: object) -> bytes:
    """A server's text frame."""
    return frame(1, json.dumps(fields).encode())


def sent(data: bytes) -> list[dict]:
    """The JSON of a client's frames; others by their opcode."""
    found = []
    while data:
        size, begin = data[1] & 0x7F, 2
        if size == 126:
            size, begin = struct.unpack(">H", data[2:4])[0], 4
        assert data[1] & 0x80, "a client's frames are masked"
        assert data[begin : begin + 4] == b"\0\0\0\0"
        payload, data = data[begin + 4 : begin + 4 + size], data[begin + 4 + size :]
        found.append(json.loads(payload) if payload.startswith(b"{") else {"payload": payload})
    return found


def delta(stream: int, number: int, count: int = 1) -> bytes:
    """A delta of `count` tokens."""
    tokens = "".join(token(each, stream=stream) for each in range(number, number + count))
    return text(t="delta", id=str(stream), i=0, n=number, k=count, x=tokens)


def make_client(*streams: int) -> ChatClient:
    """A client of some streams."""
    recorder = Recorder()
    return ChatClient(
        [StreamCheck(stream, recorder) for stream in streams], [{"seed": stream} for stream in streams], 80
    )


def accepted_client(window: int | None = None) -> ChatClient:
    """A client whose stream 7 is accepted."""
    client = make_client(7)
    limits = {} if window is None else {"window": window}
    client.feed(SWITCH + text(t="welcome", limits=limits) + text(t="accepted", id="7"), 200.0)
    assert client.is_reading
    return client


def test_the_client_sends_hello_and_starts_its_streams():
    client = make_client(3, 4)
    assert client.opening.startswith(b"GET /ws HTTP/1.1\r\n")
    assert sent(client.feed(SWITCH, 200.0)) == [{"t": "hello", "protocol": "quire.v1"}]
    answer = client.feed(text(t="welcome", limits={}), 200.0)
    assert sent(answer) == [
        {"t": "start", "id": "3", "request": {"seed": 3}},
        {"t": "start", "id": "4", "request": {"seed": 4}},
    ]
    assert not client.is_reading
    client.feed(text(t="accepted", id="3") + text(t="accepted", id="4"), 200.0)
    assert client.is_reading


def test_a_conversation_is_the_same_for_any_split():
    conversation = (
        SWITCH + text(t="welcome", limits={}) + text(t="accepted", id="7") + delta(7, 1) + text(t="progress", id="7")
        + delta(7, 2, 30) + delta(7, 32, 4000) + text(t="finish", id="7") + text(t="done", id="7")
    )  # fmt: skip
    for size in (1, 5, 1000, len(conversation)):
        client = make_client(7)
        for begin in range(0, len(conversation), size):
            assert not client.is_over
            client.feed(conversation[begin : begin + size], 200.0)
        (check,) = client.checks
        assert (check.number, check.is_done, client.is_over) == (4031, True, True)
        assert faults(check) == (0, 0, 0)


def test_the_client_is_over_when_all_streams_are_done():
    client = make_client(3, 4)
    client.feed(SWITCH + text(t="welcome", limits={}) + text(t="done", id="4"), 200.0)
    assert not client.is_over
    client.feed(text(t="done", id="3"), 200.0)
    assert client.is_over


def test_pings_are_answered():
    client = accepted_client()
    assert sent(client.feed(text(t="ping", ts=5), 200.0)) == [{"t": "pong", "ts": 5}]
    answer = client.feed(frame(9, b"abc"), 200.0)
    assert answer[0] == 0x8A
    assert sent(answer) == [{"payload": b"abc"}]


def test_a_lost_frame_is_counted():
    client = accepted_client()
    client.feed(delta(7, 1) + delta(7, 3), 200.0)
    assert faults(client.checks[0]) == (1, 0, 1)


def test_without_a_window_no_credit_is_sent():
    client = accepted_client()
    assert client.feed(delta(7, 1, 500), 200.0) + client.poke(300.0) == b""


def test_credit_is_granted_when_half_of_the_window_is_used():
    client = accepted_client(window=256)
    assert client.feed(delta(7, 1, 127), 200.0) == b""
    assert sent(client.feed(delta(7, 128), 200.0)) == [{"t": "credit", "id": "7", "upto": [128 + 256]}]
    assert client.feed(delta(7, 129), 200.0) == b""


def test_credit_above_the_rate_limit_is_sent_later():
    client = accepted_client(window=256)
    assert sent(client.feed(delta(7, 1, 256), 200.0)) != []
    assert client.feed(delta(7, 257, 256), 200.01) == b""
    assert client.poke(200.02) == b""
    assert sent(client.poke(200.2)) == [{"t": "credit", "id": "7", "upto": [512 + 256]}]
    assert client.poke(201.0) == b""


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (b"HTTP/1.1 401 Unauthorized\r\n\r\n{}", "401 Unauthorized"),
        (SWITCH + text(t="error", id="7", code="overloaded"), "overloaded"),
        (SWITCH + frame(8, struct.pack(">H", 4499) + b"slow"), "1193 slow"),
    ],
)
def test_rejections_and_early_closes_are_raised(answer, says):
    with pytest.raises(Rejected, match=says):
        make_client(7).feed(answer, 200.0)


def test_a_close_after_all_streams_is_not_an_error():
    client = accepted_client()
    client.feed(text(t="done", id="7") + frame(8, struct.pack(">H", 1012)), 200.0)
    assert client.is_over
