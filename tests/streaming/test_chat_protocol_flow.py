"""quire.v1: credit, pauses and the end of the server."""

import json
from typing import Any

import pytest

from app.streaming.chat_protocol import Action, ChatProtocol, Close, GrantCredit, Start
from tests.fakes import FakeClock
from tests.streaming.frames import (
    BODY,
    RAW_BODY,
    delta,
    frames_of,
    greeted,
    make_protocol,
    say,
    start,
    started,
    the_error,
)

# --- Credit -----------------------------------------------------------------------------------------------------------


def credit(protocol: ChatProtocol, *upto: Any) -> list[Action]:
    return say(protocol, {"t": "credit", "id": "a", "upto": list(upto)})


@pytest.mark.parametrize(
    ("given", "first"), [({}, 256), ({"credit": None}, 256), ({"credit": 0}, 0), ({"credit": 9}, 9)]
)
def test_a_stream_begins_with_the_credit_of_its_start_or_the_window(given: dict[str, Any], first: int):
    actions = say(greeted(), {"t": "start", "id": "a", "request": BODY} | given)
    assert actions == [Start("a", RAW_BODY, first)]


def test_credit_is_granted_as_it_comes():
    protocol = started(num_choices=2)
    for upto in ((300, 10), (300, 10), (1, 400), (0, 0)):
        assert credit(protocol, *upto) == [GrantCredit("a", upto)]


def test_credit_that_overtakes_the_acceptance_may_name_too_many_choices_or_too_few():
    protocol = greeted()
    say(protocol, {"t": "start", "id": "a", "request": BODY, "credit": 0})
    assert credit(protocol, 7, 3, 5) == [GrantCredit("a", (7, 3, 5))]
    assert credit(protocol, 2) == [GrantCredit("a", (2,))]


@pytest.mark.parametrize("upto", [[], [1, 2], [-1], [True], [1.0], ["1"], [None], [2**53], 5, None, {}, "1", [1] * 129])
def test_credit_that_is_no_number_for_each_choice_is_an_error(upto: Any):
    protocol = started()
    error = the_error(say(protocol, {"t": "credit", "id": "a", "upto": upto}))
    assert (error["param"], error.get("id")) == ("upto", None)


@pytest.mark.parametrize("credit", [-1, True, 1.0, "1", [1], 2**53])
def test_a_first_credit_that_is_no_number_is_an_error(credit: Any):
    error = the_error(say(greeted(), {"t": "start", "id": "a", "request": BODY, "credit": credit}))
    assert (error["id"], error["param"]) == ("a", "credit")


def test_credit_for_an_open_stream_has_its_own_rate_and_any_other_counts_as_a_message():
    clock = FakeClock()
    protocol = started(clock=clock)
    start(protocol, "b")
    for _ in range(20):
        assert credit(protocol, 1)
        assert say(protocol, {"t": "credit", "id": "b", "upto": [1]})
    for _ in range(100):
        clock.advance(0.125)
        assert credit(protocol, 1)
    for _ in range(200):
        assert say(protocol, {"t": "credit", "id": "unknown", "upto": [1]}) == []
    replies = [credit(protocol, 1) for _ in range(30)]
    assert [reply[0].code for reply in replies if reply and isinstance(reply[0], Close)] == [4429]


# --- Pauses and the end of the server ---------------------------------------------------------------------------------


def test_a_stream_is_paused_and_resumed():
    protocol = started()
    assert json.loads(protocol.pause("a")) == {"t": "paused", "id": "a"}
    assert protocol.pause("a") is None
    assert json.loads(protocol.send("a", delta(1)))["t"] == "delta"
    assert json.loads(protocol.resume("a")) == {"t": "resumed", "id": "a"}
    assert protocol.resume("a") is None
    assert protocol.pause("b") is None


def test_draining_is_sent_once_and_only_after_the_greeting():
    assert make_protocol().drain(30_000) is None
    protocol = greeted()
    assert json.loads(protocol.drain(30_000)) == {"t": "draining", "deadline_ms": 30_000}
    assert protocol.drain(30_000) is None
    assert frames_of(say(protocol, {"t": "ping", "ts": 1})) == [{"t": "pong", "ts": 1}]
