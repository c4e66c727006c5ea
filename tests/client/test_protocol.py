"""The client's protocol follows the scenarios of the chat page (tests/e2e/test_vectors.py)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.client.protocol import ClientProtocol, ClientStream

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "quire_v1.json").read_text(encoding="utf-8"))
SCENARIOS = {scenario["name"]: scenario for scenario in VECTORS["scenarios"]}


class ScenarioPlayer:
    """Plays one scenario."""

    def __init__(self) -> None:
        self.protocol = ClientProtocol()
        self.streams: dict[str, ClientStream] = {}
        self.texts: dict[str, list[str]] = {}
        self.now_ms = 0.0

    def play(self, step: dict[str, Any]) -> list[dict[str, Any]]:
        """Do one step and return the frames that the client sends."""
        if "server" in step:
            return self.protocol.receive(step["server"])
        if "closed" in step:
            self.protocol.close()
            return []
        match step["client"]:
            case "hello":
                return [self.protocol.hello(step["key"])]
            case "start":
                stream = ClientStream(step["id"], step["request"], self.protocol.window, step.get("key"))
                frame = self.protocol.start(stream)
                self.streams[step["id"]] = stream
                self.texts[step["id"]] = [""] * step["request"].get("n", 1)
                return [frame]
            case "cancel":
                stream = self.streams.get(step["id"])
                frames = [stream.cancel_frame()] if stream else []
            case "lose":
                self.protocol.suspend()
                frames = []
            case "resume":
                return self.protocol.resume()
            case "read":
                for client_id in self.streams:
                    self.take_all(client_id)
                frames = [stream.credit_frame(self.now_ms / 1000) for stream in self.streams.values()]
            case "wait":
                self.now_ms += step["ms"]
                frames = []
            case unknown:
                raise AssertionError(f"no such step: {unknown}")
        return [frame for frame in frames if frame is not None]

    def take_all(self, client_id: str) -> None:
        """Read all received events of a stream."""
        while (event := self.streams[client_id].take()) is not None:
            self.texts[client_id][event.choice] += event.text

    def outcome(self, client_id: str) -> dict[str, Any]:
        """The result of a stream, as the scenarios describe it."""
        self.take_all(client_id)
        stream, texts = self.streams[client_id], self.texts[client_id]
        ends = [stream.ends.get(choice) for choice in range(len(texts))]
        stops = [end and end.stop_reason for end in ends]
        found: dict[str, Any] = {
            "texts": texts,
            "finish": [end and end.reason for end in ends],
            **({} if stops == [None] * len(stops) else {"stop": stops}),
            "state": stream.state.value,
        }
        if stream.progress is not None:
            found["progress"] = [stream.progress[name] for name in ("phase", "done", "total")]
        if stream.failure is not None:
            found["error"] = stream.failure["code"]
        return found


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_scenario_has_its_frames_and_outcome(name: str) -> None:
    scenario, player = SCENARIOS[name], ScenarioPlayer()
    for number, step in enumerate(scenario["steps"]):
        assert player.play(step) == step.get("sends", []), f"step {number}: {step}"
    assert {client_id: player.outcome(client_id) for client_id in player.streams} == scenario["streams"]
    assert player.protocol.is_draining == scenario.get("draining", False)


def test_scenario_names_are_unique() -> None:
    assert len(SCENARIOS) == len(VECTORS["scenarios"])


def open_stream(window: int) -> ClientStream:
    """A stream of one choice."""
    protocol = ClientProtocol()
    protocol.receive({"t": "welcome", "limits": {"window": window}})
    return ClientStream("a", {"messages": []}, protocol.window)


def test_a_delta_is_read_when_the_next_one_is_requested():
    stream = open_stream(window=2)
    for number in (1, 2):
        stream.receive({"t": "delta", "id": "a", "i": 0, "n": number, "k": 1, "x": "x"})
    assert stream.credit_frame(0) is None
    assert stream.take() is not None
    assert stream.credit_frame(0) == {"t": "credit", "id": "a", "upto": [3]}
    assert stream.take() is not None
    assert stream.take() is None


def test_credit_above_the_rate_limit_is_due_later():
    stream = open_stream(window=2)
    assert stream.credit_in(5.0) is None
    for number in (1, 2):
        stream.receive({"t": "delta", "id": "a", "i": 0, "n": number, "k": 1, "x": "x"})
        stream.take()
        stream.credit_frame(5.0)
    assert stream.credit_in(5.0) == pytest.approx(0.1)
    assert stream.credit_frame(5.05) is None
    assert stream.credit_in(5.05) == pytest.approx(0.05)
    assert stream.credit_frame(6.0) == {"t": "credit", "id": "a", "upto": [4]}
    assert stream.credit_in(6.0) is None


def test_the_window_is_the_protocols_if_the_welcome_has_none():
    stream = ClientStream("a", {"messages": [], "n": 2}, ClientProtocol().window)
    stream.receive({"t": "delta", "id": "a", "i": 1, "n": 1, "k": 128, "x": "x"})
    stream.take()
    assert stream.credit_frame(0) == {"t": "credit", "id": "a", "upto": [256, 384]}


@pytest.mark.parametrize("code", ["model_loading", "draining", "rate_limit_exceeded"])
def test_a_request_that_is_sent_again_waits_for_a_server_that_cannot_answer_yet(code: str):
    protocol = ClientProtocol()
    protocol.receive({"t": "welcome", "limits": {"ttl_s": 3600}})
    stream = ClientStream("a", {"messages": []}, protocol.window, key="k")
    start = protocol.start(stream)
    protocol.suspend()
    protocol.receive({"t": "welcome", "limits": {"ttl_s": 3600}})
    for number in range(3):
        assert (stream.num_refused, protocol.resume(), protocol.resume()) == (number, [start], [])
        protocol.receive({"t": "error", "id": "a", "code": code, "status": 503, "message": "Later.", "param": None})
        assert not stream.is_over
    protocol.suspend()
    assert (stream.num_refused, protocol.streams) == (0, {"a": stream})


@pytest.mark.parametrize("code", ["model_loading", "draining", "rate_limit_exceeded"])
def test_a_first_request_that_is_refused_has_failed(code: str):
    protocol = ClientProtocol()
    protocol.receive({"t": "welcome", "limits": {"ttl_s": 3600}})
    stream = ClientStream("a", {"messages": []}, protocol.window, key="k")
    protocol.start(stream)
    protocol.receive({"t": "error", "id": "a", "code": code, "status": 503, "message": "No.", "param": None})
    assert (stream.state, protocol.streams) == ("error", {})


@pytest.mark.parametrize("n", [None, 0, "many"])
def test_an_invalid_number_of_choices_is_left_to_the_server(n: object):
    stream = ClientStream("a", {"n": n}, 2)
    assert ClientProtocol().start(stream)["request"] == {"n": n}
