"""The HTTP client parses streams in any split, and rejects responses that are not streams."""

import json

import pytest

from benchmarks.streams.control import Rejected
from benchmarks.streams.http_client import HttpClient
from benchmarks.streams.stream_apis import RESPONSES
from benchmarks.streams.stream_check import Recorder, StreamCheck
from tests.benchmarks.streams.tokens import STREAM, faults, token

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def payload(text: str | None = None, reason: str | None = None) -> bytes:
    """The JSON of one event."""
    delta = {} if text is None else {"content": text}
    return json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}).encode()


def chunk(data: bytes) -> bytes:
    """One chunk of HTTP."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def client(*, is_ndjson: bool) -> HttpClient:
    """A client of the stream."""
    return HttpClient(StreamCheck(STREAM, Recorder()), {"seed": STREAM}, 80, is_ndjson=is_ndjson)


def event(kind: str, **fields: object) -> bytes:
    """An event of a response."""
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


def stream(*chunks: bytes) -> bytes:
    """A complete response."""
    return HEAD + b"".join(map(chunk, (*chunks, b"")))


SSE = (
    b": \n",
    b"data: " + payload("") + b"\n\ndata: " + payload(token(1)) + b"\n\n",
    b": \ndata: " + payload(token(2) + token(3)) + b"\n\n",
    b"data: " + payload(reason="length") + b"\n\ndata: [DONE]\n\n",
)
NDJSON = (b"\n", payload(token(1)) + b"\n", payload(token(2) + token(3)) + b"\n", payload(reason="length") + b"\n")


RESPONSE = (
    event("response.created", response={"output": []}),
    event("response.output_text.delta", delta=token(1)),
    event("response.output_text.delta", delta=token(2) + token(3)) + event("response.output_text.done", text="x"),
    event("response.incomplete", response={"error": None}),
)


@pytest.mark.parametrize("num_missing", [0, 1])
def test_a_response_is_read_up_to_its_last_event(num_missing):
    reader = HttpClient(StreamCheck(STREAM, Recorder()), {"messages": []}, 80, is_ndjson=False, api=RESPONSES)
    assert reader.opening.startswith(b"POST /v1/responses ") and b'{"input":[],"stream":true}' in reader.opening
    reader.feed(stream(*RESPONSE[: len(RESPONSE) - num_missing]), 200.0)
    (check,) = reader.checks
    assert (check.number, check.is_done, faults(check)) == (3, not num_missing, (0, 0, 0))


@pytest.mark.parametrize(("chunks", "is_ndjson"), [(SSE, False), (NDJSON, True)])
def test_a_stream_is_the_same_for_any_split(chunks, is_ndjson):
    data = stream(*chunks)
    for size in (1, 2, 3, 7, len(data) - 1, len(data)):
        reader = client(is_ndjson=is_ndjson)
        for begin in range(0, len(data), size):
            assert not reader.is_over
            assert reader.feed(data[begin : begin + size], 200.0) == b""
        (check,) = reader.checks
        assert (check.number, check.is_done, reader.is_over) == (3, True, True)
        assert faults(check) == (0, 0, 0)


@pytest.mark.parametrize(("chunks", "is_ndjson"), [(SSE, False), (NDJSON, True)])
def test_a_stream_without_its_end_marker_is_not_done(chunks, is_ndjson):
    reader = client(is_ndjson=is_ndjson)
    reader.feed(stream(*chunks[:-1]), 200.0)
    assert (reader.is_over, reader.checks[0].is_done, reader.checks[0].number) == (True, False, 3)


def test_an_error_response_is_raised_with_its_body():
    body = b'{"error":{"code":"overloaded"}}'
    head = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: %d\r\n\r\n" % len(body)
    with pytest.raises(Rejected, match=r"503 Service Unavailable.*overloaded"):
        client(is_ndjson=False).feed(head + body, 200.0)


def test_an_error_event_is_raised():
    error = b'data: {"error":{"code":"engine_error"}}\n\n'
    with pytest.raises(Rejected, match="engine_error"):
        client(is_ndjson=False).feed(HEAD + chunk(error), 200.0)


def test_the_request_has_accept_header_length_and_body():
    head, _, body = client(is_ndjson=True).opening.partition(b"\r\n\r\n")
    assert b"accept: application/x-ndjson" in head
    assert b"content-length: %d" % len(body) in head
    assert json.loads(body) == {"seed": STREAM, "stream": True}


def test_a_resumable_stream_is_asked_for_and_checked():
    check = StreamCheck(STREAM, Recorder())
    reader = HttpClient(check, {"seed": STREAM}, 80, is_ndjson=False, is_resumable=True)
    head, _, body = reader.opening.partition(b"\r\n\r\n")
    assert b"\r\nx-quire-resume: 1" in head
    assert json.loads(body)["stream"]
    numbered = HEAD.replace(b"\r\n\r\n", b"\r\nx-quire-stream-id: r\r\n\r\n")
    assert reader.feed(numbered + chunk(b"id: 1\ndata: " + payload(token(1)) + b"\n\n"), 200.0) == b""
    assert check.number == 1
    with pytest.raises(Rejected, match="not resumable"):
        HttpClient(check, {"seed": STREAM}, 80, is_ndjson=False, is_resumable=True).feed(HEAD, 200.0)
