"""quire.v1: the reply to every frame, the numbers of tokens, and the errors of invalid frames."""

import json
from dataclasses import replace
from typing import Any

import pytest

from app.contract.errors import ErrorInfo, Overloaded
from app.contract.events import ChoiceEnd, FinishReason, Phase, Progress
from app.streaming import chat_protocol
from app.streaming.chat_actions import Cancel, Start
from app.streaming.chat_frames import Accepted
from app.streaming.chat_table import (
    State,
)
from tests.fakes import FakeClock
from tests.streaming.frames import (
    BODY,
    HELLO,
    RAW_BODY,
    TIMINGS,
    USAGE,
    delta,
    feed,
    finished,
    frames_of,
    greeted,
    make_protocol,
    only_error,
    start,
    started,
)

# --- Greeting ---------------------------------------------------------------------------------------------------------


def test_hello_is_answered_by_welcome():
    (welcome,) = frames_of(feed(make_protocol(), HELLO))
    assert welcome == {
        "t": "welcome",
        "server": "quire",
        "limits": {"max_streams": 32, "max_frame": 4194304, "max_request_bytes": 4194304, "window": 256, "ttl_s": 3600},
        "heartbeat_ms": 15000,
    }


def test_the_key_of_hello_is_checked():
    protocol = make_protocol(key="secret")
    assert frames_of(feed(protocol, HELLO | {"key": "secret"}))[0]["t"] == "welcome"


@pytest.mark.parametrize("key", ["wrong", None, 7, ["secret"], {}])
def test_a_wrong_key_closes_the_connection(key: Any):
    (close,) = feed(make_protocol(key="secret"), HELLO | {"key": key})
    assert close.code == 4401


def test_a_key_that_is_not_a_string_closes_without_configured_keys_too():
    assert feed(make_protocol(), HELLO | {"key": 7})[0].code == 4401


@pytest.mark.parametrize("kind", ["start", "cancel", "ping", "pong", "credit", ""])
def test_any_other_frame_before_hello_closes_the_connection(kind: str):
    assert feed(make_protocol(), {"t": kind, "id": "a", "request": BODY})[0].code == 4401


@pytest.mark.parametrize("protocol", ["quire.v2", None, 1])
def test_an_unknown_protocol_in_hello_closes_the_connection(protocol: Any):
    assert feed(make_protocol(), {"t": "hello", "protocol": protocol})[0].code == 4406


def test_a_missing_hello_times_out_and_after_hello_nothing_does():
    assert make_protocol().time_out()[0].code == 4408
    assert greeted().time_out() == []


# --- Frames -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '"t"', "1", "null", "{}", '{"t":1}', '{"t":null}', "\ud800", "[" * 2000]
)
@pytest.mark.parametrize("is_greeted", [False, True])
def test_anything_but_a_json_object_with_a_type_closes_the_connection(text: str, is_greeted: bool):
    protocol = greeted() if is_greeted else make_protocol()
    assert feed(protocol, text)[0].code == 4400
    assert protocol.state is State.CLOSED


def test_a_binary_message_closes_the_connection():
    assert greeted().receive_binary()[0].code == 1003


def test_a_closed_connection_replies_to_nothing():
    protocol = started()
    protocol.receive_binary()
    assert (
        feed(protocol, {"t": "ping"}) == feed(protocol, "{") == protocol.receive_binary() == protocol.time_out() == []
    )


@pytest.mark.parametrize("kind", ["snapshot", "close", "accepted", "hello", "nonsense", ""])
def test_an_unknown_type_is_an_error_and_the_connection_stays(kind: str):
    protocol = greeted()
    error = only_error(feed(protocol, {"t": kind, "id": "a", "protocol": "quire.v1"}))
    assert (error["id"], error["code"], error["param"], error["fatal"]) == ("a", "invalid_value", "t", False)
    assert protocol.state is State.READY


def test_unknown_fields_are_ignored():
    protocol = greeted()
    frame = {"t": "start", "id": "a", "request": BODY, "snapshot": 300, "else": []}
    assert feed(protocol, frame) == [Start("a", RAW_BODY, 256)]


@pytest.mark.parametrize("client_id", [None, 7, "", "x" * 65, ["a"], {}])
@pytest.mark.parametrize("kind", ["start", "resume", "credit", "cancel", "detach"])
def test_an_invalid_id_is_an_error_without_id(kind: str, client_id: Any):
    error = only_error(feed(greeted(), {"t": kind, "id": client_id, "request": BODY}))
    assert "id" not in error
    assert error["param"] == "id"


@pytest.mark.parametrize("request_body", [None, "hello", [BODY], 1])
def test_an_invalid_request_is_an_error_with_the_id(request_body: Any):
    protocol = greeted()
    error = only_error(feed(protocol, {"t": "start", "id": "a", "request": request_body}))
    assert (error["id"], error["param"], error["status"]) == ("a", "request", 400)
    start(protocol, "a")


def test_the_error_of_an_invalid_frame_does_not_name_an_open_stream():
    """An error with the id of a stream ends the stream."""
    assert "id" not in only_error(feed(started("a"), {"t": "credit", "id": "a"}))


def test_ten_invalid_frames_in_a_row_close_the_connection():
    protocol = greeted()
    for _ in range(9):
        assert not only_error(feed(protocol, {"t": "nonsense"}))["fatal"]
    error, close = feed(protocol, {"t": "nonsense"})
    assert json.loads(error.frame)["fatal"] is True
    assert close.code == 1008


def test_a_valid_frame_resets_the_count_of_invalid_ones():
    clock = FakeClock()
    protocol = greeted(clock=clock)
    for _ in range(30):
        for _ in range(9):
            feed(protocol, {"t": "nonsense"})
        assert feed(protocol, {"t": "pong", "ts": 1}) == []
        clock.advance(1)
    assert protocol.state is State.READY


@pytest.mark.parametrize("ts", [0, 17, 1.5, -3, None, 2**80])
def test_ping_is_answered_by_pong(ts: Any):
    (pong,) = frames_of(feed(greeted(), {"t": "ping", "ts": ts}))
    assert pong == {"t": "pong", "ts": ts}


@pytest.mark.parametrize("ts", ["1", True, [], {}])
def test_a_ping_whose_ts_is_not_a_number_is_an_error(ts: Any):
    assert only_error(feed(greeted(), {"t": "ping", "ts": ts}))["param"] == "ts"


def test_the_heartbeat_is_a_ping_with_the_time_in_ms():
    assert json.loads(greeted(clock=FakeClock(12.5)).heartbeat()) == {"t": "ping", "ts": 12500}


# --- Rates ------------------------------------------------------------------------------------------------------------


def test_messages_above_the_burst_close_the_connection_but_not_at_the_rate():
    clock = FakeClock()
    protocol = greeted(clock=clock)
    for _ in range(199):
        assert feed(protocol, {"t": "pong"}) == []
    for _ in range(500):
        clock.advance(2**-6)
        assert feed(protocol, {"t": "pong"}) == []
    replies = [feed(protocol, {"t": "pong"}) for _ in range(201)]
    assert [close.code for reply in replies for close in reply] == [4429]


def test_pings_above_the_rate_close_the_connection():
    protocol = greeted()
    for _ in range(50):
        assert frames_of(feed(protocol, {"t": "ping"}))
    assert feed(protocol, {"t": "ping"})[0].code == 4429


# --- Streams ----------------------------------------------------------------------------------------------------------


def test_an_end_has_its_stop_reason():
    protocol = greeted()
    start(protocol)
    protocol.accept("a", Accepted("chatcmpl-1", "guide", [0]))
    assert json.loads(protocol.send("a", replace(finished(), end=ChoiceEnd(FinishReason.STOP, "\n")))) == {
        "t": "finish", "id": "a", "i": 0, "n": 0, "finish_reason": "stop", "stop_reason": "\n",
    }  # fmt: skip


def test_a_stream_has_its_frames_from_start_to_done():
    protocol = greeted()
    start(protocol)
    assert json.loads(protocol.accept("a", Accepted("chatcmpl-1", "guide", [0]))) == {
        "t": "accepted", "id": "a", "stream": "chatcmpl-1", "model": "guide", "ttl_s": 0, "n": 1, "after": [0],
        "durable": False,
    }  # fmt: skip
    queued, waiting = Progress("r", Phase.QUEUED, 0, 5, ahead=2), Progress("r", Phase.PREFILL, 3, 5)
    events = [queued, waiting, delta(1, 2, "He"), delta(3, 1, ""), finished()]
    assert [json.loads(protocol.send("a", event)) for event in events] == [
        {"t": "progress", "id": "a", "phase": "queued", "done": 0, "total": 5, "ahead": 2},
        {"t": "progress", "id": "a", "phase": "prefill", "done": 3, "total": 5},
        {"t": "delta", "id": "a", "i": 0, "n": 1, "k": 2, "x": "He"},
        {"t": "delta", "id": "a", "i": 0, "n": 3, "k": 1, "x": ""},
        {"t": "finish", "id": "a", "i": 0, "n": 3, "finish_reason": "stop"},
    ]
    assert json.loads(protocol.finish("a", USAGE, TIMINGS)) == {
        "t": "done",
        "id": "a",
        "usage": {
            "prompt_tokens": 5,
            "completion_tokens": 3,
            "total_tokens": 8,
            "prompt_tokens_details": {"cached_tokens": 2},
        },
        "timings": {
            "queue_ms": 1.235, "ttft_ms": 2.0, "prefill_tok_s": 3.0, "decode_tok_s": 4.0, "itl_p50_ms": 5.0,
        },
    }  # fmt: skip
    start(protocol)  # the id is free again


def test_finish_has_the_number_of_tokens_of_its_choice():
    protocol = started(num_choices=2)
    events = [delta(1, 4, choice=1), delta(1, 2), finished(choice=1), finished(choice=0)]
    frames = [protocol.send("a", event) for event in events]
    assert [(json.loads(frame)["i"], json.loads(frame)["n"]) for frame in frames[2:]] == [(1, 4), (0, 2)]


def test_a_stream_cancelled_before_its_first_token_finishes_at_number_0():
    frame = json.loads(started().send("a", finished(FinishReason.CANCELLED)))
    assert (frame["n"], frame["finish_reason"]) == (0, "cancelled")


def test_a_stream_can_fail_before_and_after_it_is_accepted():
    info = Overloaded("The queue is full.").info()
    protocol = greeted()
    start(protocol)
    assert json.loads(protocol.fail("a", info)) == {
        "t": "error", "id": "a", "code": "overloaded", "status": 503, "message": "The queue is full.", "param": None,
        "fatal": False,
    }  # fmt: skip
    start(protocol)
    protocol.accept("a", Accepted("s", "guide", [0]))
    protocol.send("a", delta(1))
    assert json.loads(protocol.fail("a", info))["code"] == "overloaded"
    start(protocol)


def test_cancel_acts_on_open_streams_and_is_ignored_otherwise():
    protocol = greeted()
    assert feed(protocol, {"t": "cancel", "id": "a"}) == []
    start(protocol)
    assert feed(protocol, {"t": "cancel", "id": "a"}) == [Cancel("a")]
    protocol.accept("a", Accepted("s", "guide", [0]))
    assert feed(protocol, {"t": "cancel", "id": "a"}) == [Cancel("a")]
    protocol.send("a", finished(FinishReason.CANCELLED))
    protocol.finish("a", USAGE, TIMINGS)
    assert feed(protocol, {"t": "cancel", "id": "a"}) == []


@pytest.mark.parametrize("is_accepted", [False, True])
def test_a_duplicate_id_closes_the_connection(is_accepted: bool):
    protocol = started() if is_accepted else greeted()
    if not is_accepted:
        start(protocol)
    assert feed(protocol, {"t": "start", "id": "a", "request": BODY})[0].code == 4409


def test_the_33rd_stream_is_rejected_and_the_connection_stays():
    protocol = greeted()
    for i in range(32):
        start(protocol, f"s{i}")
    for _ in range(12):  # these do not count as invalid frames
        error = only_error(feed(protocol, {"t": "start", "id": "one more", "request": BODY}))
        assert (error["id"], error["code"], error["status"]) == ("one more", "rate_limit_exceeded", 429)
    protocol.fail("s0", ErrorInfo("engine_error", ""))
    start(protocol, "one more")


def test_before_hello_long_frames_are_rejected_unparsed(monkeypatch):
    parsed: list[int] = []
    read = chat_protocol.read_frame
    monkeypatch.setattr(chat_protocol, "read_frame", lambda text: parsed.append(len(text)) or read(text))
    hello = json.dumps(HELLO)
    for long in (hello[:-1] + " " * 8192 + "}", json.dumps(HELLO | {"x": "ü" * 5000}, ensure_ascii=False), "[" * 2**22):
        protocol = make_protocol()
        (close,) = protocol.receive(long)
        assert (close.code, "8192 bytes" in close.reason) == (1009, True)
        assert protocol.receive(hello) == []
    assert parsed == []
    protocol = make_protocol()
    protocol.receive(hello[:-1] + " " * (8192 - len(hello)) + "}")
    assert protocol.state is State.READY
    assert parsed == [8192]


def test_without_a_key_only_one_frame_of_a_connection_is_parsed(monkeypatch):
    parsed: list[int] = []
    read = chat_protocol.read_frame
    monkeypatch.setattr(chat_protocol, "read_frame", lambda text: parsed.append(len(text)) or read(text))
    for first in (
        HELLO,
        HELLO | {"key": "wrong"},
        {"t": "ping"},
        {"t": "start", "id": "a", "request": BODY},
        {"t": "x"},
    ):
        protocol = make_protocol(key="right")
        for _ in range(5):
            feed(protocol, first)
    assert len(parsed) == 5


def test_the_request_of_a_start_is_passed_on_unparsed():
    request = '{"messages": [' + ", ".join(["[]"] * 100_000) + '], "a": 1, "a": 1}'
    frame = '{"t":"start","id":"a","x":[[[{}]]],"request":' + request + "}"
    assert feed(greeted(), frame) == [Start("a", request.encode(), 256)]


@pytest.mark.parametrize(
    ("frame", "param"),
    [
        ('{"t":"start","id":"a","request":[]}', "request"),
        ('{"t":"start","id":"a","request":null}', "request"),
        ('{"t":"start","id":"' + "a" * 9000 + '","request":{}}', "id"),
        ('{"t":"start","id":"a","request":{},"credit":' + "[" * 9 + "1," * 9000 + "1" + "]" * 9 + "}", "credit"),
    ],
)
def test_a_field_of_the_wrong_type_is_an_error_that_names_it(frame, param):
    (error,) = frames_of(feed(greeted(), frame))
    assert (error["t"], error["code"], error["param"]) == ("error", "invalid_value", param)


@pytest.mark.parametrize(
    "frame", ['{"t":"ping","x":' + "[" * 200_000, '{"t":"start","request":{"a":NaN}}', '{"t":1e400}', "{"]
)
def test_invalid_json_anywhere_in_a_frame_closes_the_connection(frame):
    assert [action.code for action in greeted().receive(frame)] == [4400]
