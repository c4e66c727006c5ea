"""Reads answers of a server over WebSockets that break, and compares them with undisturbed ones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
from websockets.sync.client import ClientConnection, connect

from tests.api.resumed_frames import joined, position_behind
from tests.server.processes import HANG_S
from tests.server.resumed_reading import body

CREDIT = 10**6
ENDS = ("done", "error")


def check_every_number(client: httpx.Client, fields: dict[str, Any]) -> None:
    """Break a connection, and come back at each number; every token must come once."""
    request = {name: value for name, value in body(**fields).items() if name not in ("stream", "return_token_ids")}
    with opened(client) as socket:
        send(socket, t="start", id="a", request=request, credit=CREDIT)
        undisturbed = joined([*frames_until(socket, *ENDS)])
        send(socket, t="start", id="b", request=request, ttl_s=60, credit=3)
        accepted, *had = [*frames_until(socket, "delta")]
    with opened(client) as socket:
        rest = resumed(socket, accepted, [choice["position"] for choice in joined([accepted, *had]).values()])
        assert same(joined([accepted, *had, *rest[1:]])) == same(undisturbed)
        frames = resumed(socket, accepted, [0] * accepted["n"])
        whole = joined(frames)
        assert same(whole) == same(undisturbed)
        had_at = {choices[0]: index for index, choices in positions_in(frames) if len(choices) == 1}
        last = [choice["position"] for choice in whole.values()]
        for number in range(last[0] + 1):
            rest = resumed(socket, accepted, [number, *last[1:]])
            if number in had_at:
                assert joined([*frames[: had_at[number] + 1], *rest[1:]]) == whole
            told = joined(rest)
            assert whole[0]["x"].endswith(told[0]["x"])
            assert told[0]["lp"] == whole[0]["lp"][number:]
            assert all(not choice["x"] + choice["r"] for choice in [*told.values()][1:])
    assert last[0] > 1


@contextmanager
def opened(client: httpx.Client) -> Iterator[ClientConnection]:
    url = str(client.base_url).rstrip("/").replace("http", "ws") + "/ws"
    with connect(url, subprotocols=["quire.v1"], proxy=None, max_size=None) as socket:
        send(socket, t="hello", protocol="quire.v1")
        assert next(frames_until(socket, "welcome"))["limits"]["ttl_s"] == 3600
        yield socket


def send(socket: ClientConnection, **frame: Any) -> None:
    socket.send(json.dumps(frame))


def frames_until(socket: ClientConnection, *kinds: str) -> Iterator[dict[str, Any]]:
    """Yield frames but those of the connection, up to and including one of `kinds`."""
    while True:
        frame = json.loads(socket.recv(HANG_S))
        if frame["t"] not in ("ping", "pong", "progress"):
            yield frame
        if frame["t"] in kinds:
            return


def resumed(socket: ClientConnection, accepted: dict[str, Any], after: list[int]) -> list[dict[str, Any]]:
    send(socket, t="resume", id="r", stream=accepted["stream"], after=after, credit=CREDIT)
    frames = [*frames_until(socket, *ENDS)]
    assert frames[0] == {**accepted, "id": "r", "after": after}
    assert frames[-1]["t"] == "done"
    return frames


def positions_in(frames: list[dict[str, Any]]) -> Iterator[tuple[int, list[int]]]:
    """Yield the positions behind each frame of deltas."""
    positions = [0] * frames[0]["n"]
    for index, frame in enumerate(frames):
        if frame["t"] == "delta":
            positions[frame["i"]] = position_behind(frame)
            yield index, [*positions]


def same(choices: dict[int, dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """Choices without what differs between two requests: the ids of calls."""
    for choice in choices.values():
        choice["tool"] = [(call, {**pieces, "id": ""}) for call, pieces in choice["tool"]]
    return choices
