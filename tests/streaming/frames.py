"""The protocol of quire.v1 in each state, frames of a client, and events of an engine."""

import json
from typing import Any

from app.contract.events import ChoiceEnd, Finished, FinishReason, Timings, TokenDelta, Usage
from app.streaming.chat_actions import Action, ChatLimits, Send, Start
from app.streaming.chat_frames import Accepted
from app.streaming.chat_protocol import ChatProtocol
from app.streaming.stream_timings import StreamTimings
from tests.fakes import FakeClock

HELLO = {"t": "hello", "protocol": "quire.v1"}
BODY = {"messages": [{"role": "user", "content": "Hello"}]}
RAW_BODY = json.dumps(BODY).encode()
USAGE = Usage(5, 3, 2)
TIMINGS = StreamTimings(1.23456, 2.0, 3.0, 4.0, 5.0)


def make_protocol(key: str | None = None, clock: FakeClock | None = None, **limits: Any) -> ChatProtocol:
    return ChatProtocol(lambda given: key is None or given == key, ChatLimits(**limits), clock or FakeClock())


def feed(protocol: ChatProtocol, frame: Any) -> list[Action]:
    return protocol.receive(frame if isinstance(frame, str) else json.dumps(frame))


def greeted(**options: Any) -> ChatProtocol:
    protocol = make_protocol(**options)
    feed(protocol, HELLO)
    return protocol


def start(protocol: ChatProtocol, client_id: str = "a") -> None:
    assert feed(protocol, {"t": "start", "id": client_id, "request": BODY}) == [Start(client_id, RAW_BODY, 256)]


def started(client_id: str = "a", *, num_choices: int = 1, **options: Any) -> ChatProtocol:
    protocol = greeted(**options)
    start(protocol, client_id)
    protocol.accept(client_id, Accepted("chatcmpl-1", "guide", [0] * num_choices))
    return protocol


def paused(client_id: str = "a") -> ChatProtocol:
    protocol = started(client_id)
    assert protocol.pause(client_id)
    return protocol


def draining() -> ChatProtocol:
    protocol = greeted()
    assert protocol.drain(1000)
    return protocol


def delta(first: int, count: int = 1, text: str = "x", choice: int = 0) -> TokenDelta:
    return TokenDelta("r", choice, first, tuple(range(count)), text)


def finished(reason: FinishReason = FinishReason.STOP, choice: int = 0) -> Finished:
    return Finished("r", choice, ChoiceEnd(reason), USAGE, Timings(0, 0, 0))


def frames_of(actions: list[Action]) -> list[dict[str, Any]]:
    return [json.loads(action.frame) for action in actions if isinstance(action, Send)]


def only_error(actions: list[Action]) -> dict[str, Any]:
    (frame,) = frames_of(actions)
    assert frame["t"] == "error"
    return frame
