"""The tables of quire.v1 are complete, and the protocol follows them."""

import json
from typing import Any

import pytest

from app.contract.errors import ErrorInfo
from app.contract.events import Phase, Progress
from app.streaming.chat_actions import Action, Close, Send
from app.streaming.chat_frames import Accepted
from app.streaming.chat_protocol import ChatProtocol
from app.streaming.chat_table import (
    CONNECTION_STATES,
    OF_STREAMS,
    REJECTIONS,
    STREAM_STATES,
    TRANSITIONS,
    State,
)
from tests.streaming.frames import (
    BODY,
    TIMINGS,
    USAGE,
    delta,
    draining,
    feed,
    finished,
    greeted,
    make_protocol,
    paused,
    start,
    started,
)

# --- The table --------------------------------------------------------------------------------------------------------


def connection(state: State) -> ChatProtocol:
    return {State.GREETING: make_protocol, State.READY: greeted, State.DRAINING: draining}[state]()


def with_stream(state: State) -> ChatProtocol:
    if state is State.STARTING:
        protocol = greeted()
        start(protocol)
        return protocol
    return {State.UNKNOWN: greeted, State.STREAMING: started, State.PAUSED: paused}[state]()


FIELDS = {
    "hello": {"protocol": "quire.v1"},
    "start": {"id": "a", "request": BODY},
    "resume": {"id": "a", "stream": "chatcmpl-1", "after": [0]},
    "credit": {"id": "a", "upto": [500]},
    "cancel": {"id": "a"},
    "detach": {"id": "a"},
    "ping": {},
    "pong": {},
}


def outcome(actions: list[Action]) -> str:
    """The name of the reply, as in the table."""
    if not actions:
        return "nothing"
    (action,) = actions
    if isinstance(action, Close):
        return f"close {action.code}"
    frame = json.loads(action.frame) if isinstance(action, Send) else {"t": type(action).__name__.lower()}
    return str(frame["t"])


def expected(state: State, kind: str) -> str:
    """The reply that the table requires."""
    if (state, kind) in TRANSITIONS:
        replies = {"hello": "welcome", "credit": "grantcredit", "ping": "pong", "pong": "nothing"}
        return replies.get(kind, kind)
    code = REJECTIONS[state, kind].code
    return {None: "nothing", 0: "error"}.get(code, f"close {code}")


@pytest.mark.parametrize(
    ("protocol", "kind", "does"),
    [
        (make_protocol, "start", "close 4401"),
        (make_protocol, "ping", "close 4401"),
        (greeted, "hello", "error"),
        (greeted, "credit", "nothing"),
        (greeted, "cancel", "nothing"),
        (started, "start", "close 4409"),
        (started, "credit", "grantcredit"),
        (paused, "start", "close 4409"),
        (paused, "cancel", "cancel"),
        (draining, "start", "start"),
        (draining, "resume", "resume"),
        (draining, "ping", "pong"),
    ],
)
def test_replies_that_clients_rely_on_are_fixed(protocol: Any, kind: str, does: str):
    assert outcome(feed(protocol(), {"t": kind} | FIELDS[kind])) == does


STREAM_TABLE = {
    #           unknown     starting      streaming      paused
    "start": ("starting", "close 4409", "close 4409", "close 4409"),
    "resume": ("starting", "close 4409", "close 4409", "close 4409"),
    "detach": ("ignored", "unknown", "unknown", "unknown"),
    "credit": ("ignored", "starting", "streaming", "paused"),
    "cancel": ("ignored", "starting", "streaming", "paused"),
}


@pytest.mark.parametrize(("kind", "row"), STREAM_TABLE.items())
def test_frames_of_streams_lead_exactly_there(kind: str, row: tuple[str, ...]):
    """Each frame in the greeting, while a stream is as the row's columns say, and the same while draining."""
    assert outcome(feed(make_protocol(), {"t": kind} | FIELDS[kind])) == "close 4401"
    for state, leads_to in zip(STREAM_STATES, row, strict=True):
        for is_draining in (False, True):
            protocol = with_stream(state)
            if is_draining:
                protocol.drain(1000)
            found = outcome(feed(protocol, {"t": kind} | FIELDS[kind]))
            if leads_to == "ignored":
                assert (found, protocol._state_of("a")) == ("nothing", state)
            elif leads_to.startswith("close"):
                assert (found, protocol.state) == (leads_to, State.CLOSED)
            else:
                assert found == {"credit": "grantcredit"}.get(kind, kind)
                assert protocol._state_of("a") == leads_to


@pytest.mark.parametrize("state", CONNECTION_STATES)
@pytest.mark.parametrize("kind", FIELDS)
def test_replies_to_frames_in_every_state_of_a_connection_are_those_of_the_table(state: State, kind: str):
    protocol = connection(state)
    has_unknown_stream = kind in ("credit", "cancel", "detach") and state is not State.GREETING
    assert outcome(feed(protocol, {"t": kind} | FIELDS[kind])) == (
        expected(State.UNKNOWN, kind) if has_unknown_stream else expected(state, kind)
    )
    assert protocol.state in (TRANSITIONS.get((state, kind), state), State.CLOSED)


@pytest.mark.parametrize("state", STREAM_STATES)
@pytest.mark.parametrize("kind", OF_STREAMS)
def test_replies_to_frames_in_every_state_of_a_stream_are_those_of_the_table(state: State, kind: str):
    protocol = with_stream(state)
    assert outcome(feed(protocol, {"t": kind} | FIELDS[kind])) == expected(state, kind)
    if protocol.state is not State.CLOSED:
        assert protocol._state_of("a") is TRANSITIONS.get((state, kind), state)


def test_every_frame_has_a_reply_in_every_state():
    for kind in FIELDS:
        states = STREAM_STATES if kind in OF_STREAMS else ()
        for state in (*CONNECTION_STATES, *states):
            assert ((state, kind) in TRANSITIONS) != ((state, kind) in REJECTIONS)


SENDERS = {
    "accepted": lambda protocol: protocol.accept("a", Accepted("s", "guide", [0])),
    "progress": lambda protocol: protocol.send("a", Progress("r", Phase.PAUSED, 1, 2)),
    "delta": lambda protocol: protocol.send("a", delta(1)),
    "finish": lambda protocol: protocol.send("a", finished()),
    "done": lambda protocol: protocol.finish("a", USAGE, TIMINGS),
    "error": lambda protocol: protocol.fail("a", ErrorInfo("engine_error", "")),
}


@pytest.mark.parametrize("state", STREAM_STATES)
@pytest.mark.parametrize("kind", SENDERS)
def test_a_stream_sends_only_the_frames_of_the_table(state: State, kind: str):
    protocol = with_stream(state)
    if (state, kind) in TRANSITIONS:
        SENDERS[kind](protocol)
        assert protocol._state_of("a") is TRANSITIONS[state, kind]
    else:
        with pytest.raises(AssertionError):
            SENDERS[kind](protocol)
        assert protocol._state_of("a") is state
