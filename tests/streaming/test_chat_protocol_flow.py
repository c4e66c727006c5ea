"""quire.v1: credit, pauses and draining."""

import json
from typing import Any

import pytest

from app.streaming.chat_actions import Action, Close, GrantCredit, Start
from app.streaming.chat_protocol import ChatProtocol
from tests.fakes import FakeClock
from tests.streaming.frames import (
    BODY,
    RAW_BODY,
    delta,
    feed,
    frames_of,
    greeted,
    make_protocol,
    only_error,
    start,
    started,
)

# --- Credit -----------------------------------------------------------------------------------------------------------


def credit(protocol: ChatProtocol, *upto: Any) -> list[Action]:
    return feed(protocol, {"t": "credit", "id": "a", "upto": list(upto)})


@pytest.mark.parametrize(
    ("given", "first"), [({}, 256), ({"credit": None}, 256), ({"credit": 0}, 0), ({"credit": 9}, 9)]
)
def test_the_first_credit_is_that_of_start_or_the_window(given: dict[str, Any], first: int):
    actions = feed(greeted(), {"t": "start", "id": "a", "request": BODY} | given)
    assert actions == [Start("a", RAW_BODY, first)]


def test_every_credit_frame_is_granted():
    protocol = started(num_choices=2)
    for upto in ((300, 10), (300, 10), (1, 400), (0, 0)):
        assert credit(protocol, *upto) == [GrantCredit("a", upto)]


def test_credit_before_the_acceptance_may_name_any_number_of_choices():
    protocol = greeted()
    feed(protocol, {"t": "start", "id": "a", "request": BODY, "credit": 0})
    assert credit(protocol, 7, 3, 5) == [GrantCredit("a", (7, 3, 5))]
    assert credit(protocol, 2) == [GrantCredit("a", (2,))]


@pytest.mark.parametrize("upto", [[], [1, 2], [-1], [True], [1.0], ["1"], [None], [2**53], 5, None, {}, "1", [1] * 129])
def test_credit_must_be_one_integer_per_choice(upto: Any):
    protocol = started()
    error = only_error(feed(protocol, {"t": "credit", "id": "a", "upto": upto}))
    assert (error["param"], error.get("id")) == ("upto", None)


@pytest.mark.parametrize("credit", [-1, True, 1.0, "1", [1], 2**53])
def test_the_first_credit_must_be_an_integer(credit: Any):
    error = only_error(feed(greeted(), {"t": "start", "id": "a", "request": BODY, "credit": credit}))
    assert (error["id"], error["param"]) == ("a", "credit")


def test_credit_of_open_streams_has_its_own_rate_limit():
    clock = FakeClock()
    protocol = started(clock=clock)
    start(protocol, "b")
    for _ in range(20):
        assert credit(protocol, 1)
        assert feed(protocol, {"t": "credit", "id": "b", "upto": [1]})
    for _ in range(100):
        clock.advance(0.125)
        assert credit(protocol, 1)
    for _ in range(200):
        assert feed(protocol, {"t": "credit", "id": "unknown", "upto": [1]}) == []
    replies = [credit(protocol, 1) for _ in range(30)]
    assert [reply[0].code for reply in replies if reply and isinstance(reply[0], Close)] == [4429]


# --- Pauses and draining ----------------------------------------------------------------------------------------------


def test_a_stream_is_paused_and_resumed():
    protocol = started()
    assert json.loads(protocol.pause("a")) == {"t": "paused", "id": "a"}
    assert protocol.pause("a") is None
    assert json.loads(protocol.send("a", delta(1)))["t"] == "delta"
    assert json.loads(protocol.resume("a")) == {"t": "resumed", "id": "a"}
    assert protocol.resume("a") is None
    assert protocol.pause("b") is None


def test_draining_is_sent_once_and_only_after_hello():
    assert make_protocol().drain(30_000) is None
    protocol = greeted()
    assert json.loads(protocol.drain(30_000)) == {"t": "draining", "deadline_ms": 30_000}
    assert protocol.drain(30_000) is None
    assert frames_of(feed(protocol, {"t": "ping", "ts": 1})) == [{"t": "pong", "ts": 1}]
