"""The WebSocket of responses without a socket: the answer to every frame, and the order of responses."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from openai.types.responses import ResponseSteerFailedEvent
from openai.types.responses.responses_server_event import ResponseWsError

from app.api.responses.responses_protocol import (
    MAX_WAITING,
    MAX_WAITING_BYTES,
    Action,
    Create,
    ResponsesProtocol,
    error_frame,
)
from app.contract.errors import Overloaded
from app.streaming.chat_actions import ChatLimits, Close, Send
from tests.fakes import FakeClock

CREATE = {"type": "response.create", "model": "guide", "input": "Hi"}


def protocol(**limits: Any) -> ResponsesProtocol:
    """A protocol whose clock stands still."""
    return ResponsesProtocol(ChatLimits(**limits), FakeClock())


def feed(server: ResponsesProtocol, **fields: Any) -> list[Action]:
    """Send a frame."""
    return server.receive(json.dumps(fields))


def error_in(actions: list[Action]) -> dict[str, Any]:
    """The error of the one action that sends one, as OpenAI's type has it."""
    [action] = actions
    assert isinstance(action, Send)
    frame: dict[str, Any] = json.loads(action.frame)
    ResponseWsError.model_validate(frame, strict=True)
    return frame


def test_a_frame_becomes_a_body():
    [create] = feed(protocol(), **CREATE)
    assert isinstance(create, Create)
    assert (json.loads(create.body), create.stream_id, create.has_output) == (CREATE, None, True)


@pytest.mark.parametrize(("generate", "has_output"), [(True, True), (None, True), (False, False)])
def test_a_frame_says_whether_there_is_an_output(generate, has_output):
    [create] = feed(protocol(), **CREATE, generate=generate)
    assert isinstance(create, Create) and create.has_output == has_output


@pytest.mark.parametrize("generate", ["no", 0, [], {}])
def test_whether_there_is_an_output_is_true_or_false(generate):
    assert error_in(feed(protocol(), **CREATE, generate=generate))["error"]["param"] == "generate"


def test_one_response_begins_after_another_in_their_order():
    server = protocol()
    [first] = feed(server, **CREATE, stream_id="1")
    assert [feed(server, **CREATE, stream_id=str(number)) for number in range(2, MAX_WAITING + 2)] == [[]] * MAX_WAITING
    error = error_in(feed(server, **CREATE, stream_id="more"))
    assert (error["status"], error["error"]["code"], error["stream_id"]) == (429, "rate_limit_exceeded", "more")
    begun = [first, *(action for _ in range(MAX_WAITING) for action in server.end_response())]
    assert [create.stream_id for create in begun] == [str(number) for number in range(1, MAX_WAITING + 2)]
    assert server.is_busy and server.end_response() == [] and not server.is_busy
    assert len(feed(server, **CREATE)) == 1


def test_frames_that_wait_have_a_bound_of_bytes():
    """Else one client's sockets would hold gigabytes: a frame may have as many bytes as a body."""
    server, half = protocol(), "a" * (MAX_WAITING_BYTES // 2)
    assert [len(feed(server, **CREATE, instructions=half * 4)), len(feed(server, **CREATE, instructions=half))] == [
        1,
        0,
    ]
    error = error_in(feed(server, **CREATE, instructions=half))
    assert (error["status"], error["error"]["code"]) == (429, "rate_limit_exceeded")
    assert feed(server, **CREATE) == [] and len(server.end_response()) == 1
    assert feed(server, **CREATE, instructions=half) == []


@pytest.mark.parametrize("stream_id", ["a", "A_.-9", "x" * 256])
def test_a_response_may_have_a_name(stream_id):
    [create] = feed(protocol(), **CREATE, stream_id=stream_id)
    assert isinstance(create, Create) and create.stream_id == stream_id


@pytest.mark.parametrize("stream_id", ["", "x" * 257, "a b", "é", 7, ["a"], {}, "x" * 10_000])
def test_a_name_that_is_none_is_told(stream_id):
    error = error_in(feed(protocol(), **CREATE, stream_id=stream_id))
    assert error["error"]["param"] == "stream_id" and "stream_id" not in error


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '"a"', "[" * 100_000, '{"a":' * 100_000])
def test_what_is_no_object_is_an_error_and_the_socket_stays(text):
    server = protocol()
    assert error_in(server.receive(text))["error"]["code"] == "json_invalid"
    assert len(feed(server, **CREATE)) == 1


@pytest.mark.parametrize("kind", ["response.cancel", "", None, 7, ["response.create"], "x" * 20_000])
def test_a_frame_of_another_type_is_an_error_that_says_which_there_is(kind):
    error = error_in(feed(protocol(), type=kind, stream_id="s"))
    assert (error["status"], error["error"]["param"], error["stream_id"]) == (400, "type", "s")
    assert "must be response.create" in error["error"]["message"] and len(error["error"]["message"]) < 200


def test_a_response_is_not_steered():
    steer = {"input": "Faster.", "previous_response_id": "resp_1"}
    [action] = feed(protocol(), type="response.steer", stream_id="s", **steer)
    assert isinstance(action, Send)
    frame = json.loads(action.frame)
    ResponseSteerFailedEvent.model_validate(frame, strict=True)
    assert (frame["type"], frame["error"]["code"]) == ("response.steer.failed", "steering_not_supported")
    assert (frame["steer"], frame["stream_id"]) == (steer, "s")


def test_who_has_processed_a_response_may_say_so():
    assert feed(protocol(), type="response.processed", response_id="resp_1") == []


def test_a_binary_frame_closes_the_socket():
    [close] = protocol().receive_binary()
    assert isinstance(close, Close) and close.code == 1003


def test_many_bad_frames_in_a_row_close_the_socket():
    server = protocol(max_bad_frames=3)
    for _ in range(2):
        assert len(server.receive("{")) == 1
    feed(server, type="response.processed")
    for _ in range(2):
        assert len(server.receive("{")) == 1
    reply, close = server.receive("{")
    assert isinstance(reply, Send) and isinstance(close, Close) and close.code == 1008


def test_many_frames_in_a_second_close_the_socket():
    server = protocol(messages_burst=2)
    for _ in range(2):
        assert feed(server, type="response.processed") == []
    [close] = feed(server, type="response.processed")
    assert isinstance(close, Close) and close.code == 4429


def test_an_error_says_when_to_try_again():
    frame = json.loads(error_frame(Overloaded("Full.", retry_after_s=7).info()))
    ResponseWsError.model_validate(frame, strict=True)
    assert (frame["status"], frame["error"]["headers"]) == (503, {"retry-after": "7"})


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=9,
)
NAMES = st.sampled_from(["type", "stream_id", "generate", "input", "previous_response_id", "x"])
TYPES = st.sampled_from(["response.create", "response.steer", "response.processed"])


@given(st.one_of(st.text(), st.dictionaries(NAMES, JSON | TYPES).map(json.dumps)))
@example('{"type": "\\ud800"}')
@example('{"type": "response.steer", "input": 1e999}')
@example('{"type": "response.steer", "input": ' + "[" * 2000 + "]" * 2000 + "}")
def test_whatever_a_client_sends_is_answered(text):
    for action in protocol().receive(text):
        if isinstance(action, Send):
            assert json.loads(action.frame)["type"] in ("error", "response.steer.failed")
        else:
            assert isinstance(action, Create) and json.loads(action.body)["type"] == "response.create"


@given(st.lists(st.sampled_from(["create", "end", "bad", "steer"]), max_size=80))
def test_every_response_that_was_taken_begins_once_and_one_at_a_time(steps):
    server, taken, begun, num_running = protocol(max_bad_frames=1000, messages_burst=1000), [], [], 0
    for number, step in enumerate(steps):
        if step == "end" and num_running:
            num_running -= 1
            actions = server.end_response()
        elif step == "create":
            actions = feed(server, **CREATE, stream_id=str(number))
            if not any(isinstance(action, Send) for action in actions):
                taken.append(str(number))
        else:
            actions = feed(server, type="response.steer" if step == "steer" else "?")
        started = [action for action in actions if isinstance(action, Create)]
        num_running += len(started)
        begun += [create.stream_id for create in started]
        assert num_running <= 1 and server.is_busy == bool(num_running)
    assert begun == taken[: len(begun)] and len(taken) - len(begun) <= MAX_WAITING
