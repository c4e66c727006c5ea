"""The scenarios that clients are held to (tests/vectors/quire_v1.json) are what the server takes and sends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.contract.errors import RateLimitExceeded
from app.streaming.chat_actions import Close
from app.streaming.chat_frames import Accepted
from app.streaming.chat_protocol import ChatProtocol
from tests.streaming.frames import HELLO, feed, frames_of, make_protocol

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "quire_v1.json").read_text(encoding="utf-8"))
RESUMING = {
    scenario["name"]: scenario["steps"] for scenario in VECTORS["scenarios"] if {"client": "lose"} in scenario["steps"]
}


def connected() -> ChatProtocol:
    protocol = make_protocol(window=8)
    feed(protocol, HELLO)
    return protocol


@pytest.mark.parametrize("name", RESUMING)
def test_the_server_takes_the_frames_of_clients_that_come_back(name: str):
    protocol, opened = connected(), []
    for step in RESUMING[name]:
        if step.get("client") == "lose":
            protocol = connected()
        for frame in step.get("sends", []):
            actions = feed(protocol, frame)
            assert not frames_of(actions)
            assert not any(isinstance(action, Close) for action in actions)
            opened += actions
        if (sent := step.get("server", {})).get("t") == "accepted":
            assert json.loads(accepted(protocol, sent)) == sent
        elif sent.get("t") == "error":
            protocol.fail(sent["id"], RateLimitExceeded(sent["message"]).info())
    assert opened


def accepted(protocol: ChatProtocol, frame: dict[str, Any]) -> str:
    return protocol.accept(frame["id"], Accepted(frame["stream"], frame["model"], frame["after"], ttl_s=frame["ttl_s"]))
