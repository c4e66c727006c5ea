"""Answers over quire.v1 that a kill -9 of the server cuts: on the next socket they go on with the same bytes."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed

from tests.api.resumed_frames import joined
from tests.server.processes import HANG_S, RunningServer
from tests.server.quick_start import serving
from tests.server.resumed_sockets import CREDIT, ENDS, frames_until, opened, resumed, same, send
from tests.server.test_journal_kills import long
from tests.server.test_resuming import CASES
from tests.server.thinking_checkpoint import write_thinking_checkpoint

Frames = dict[str, list[dict[str, Any]]]
OF_ANSWERS = ("accepted", "delta", "finish", *ENDS)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_thinking_checkpoint(tmp_path_factory.mktemp("socket-kills") / "thinking"))


@pytest.fixture(scope="module")
def undisturbed(model: str) -> Iterator[dict[str, Any]]:
    with serving(model) as server, client_of(server) as client, opened(client) as socket:
        whole = {}
        for name in CASES:
            send(socket, t="start", id=name, request=request(name), credit=CREDIT)
            whole[name] = same(joined([*frames_until(socket, *ENDS)]))
        yield whole


def client_of(server: RunningServer) -> httpx.Client:
    server.wait_until_ready()
    return httpx.Client(base_url=server.url, timeout=HANG_S)


def request(name: str) -> dict[str, Any]:
    return {field: value for field, value in long(name).items() if field not in ("stream", "return_token_ids")}


def read_until_killed(client: httpx.Client, count: int, kill: Callable[[], None]) -> Frames:
    """Read all cases over one socket, and kill the server when each has `count` deltas, or has ended."""
    had: Frames = {name: [] for name in CASES}
    is_killed = False
    with opened(client) as socket, pytest.raises(ConnectionClosed):
        for name in CASES:
            send(socket, t="start", id=name, request=request(name), ttl_s=60, credit=CREDIT)
        while True:
            frame = json.loads(socket.recv(HANG_S))
            if frame["t"] in OF_ANSWERS:
                had[frame["id"]].append(frame)
            if not is_killed and all(
                len(frames) > count or (frames[-1:] and frames[-1]["t"] in ENDS) for frames in had.values()
            ):
                is_killed = True
                kill()
    return had


@pytest.mark.parametrize("count", [1, 25])
def test_a_killed_server_goes_on_with_the_same_bytes(
    count: int, tmp_path: Path, model: str, undisturbed: dict[str, Any]
):
    options = (model, "--journal", str(tmp_path / "journal"))
    with serving(*options) as server, client_of(server) as client:
        had = read_until_killed(client, count, lambda: server.process.send_signal(signal.SIGKILL))
        server.process.wait(HANG_S)
    assert any(frames[-1]["t"] not in ENDS for frames in had.values()), "all answers had ended before the kill"
    with serving(*options) as server, client_of(server) as client, opened(client) as socket:
        for name, frames in had.items():
            accepted, *rest = frames
            assert accepted["durable"]
            positions = [choice["position"] for choice in joined(frames).values()]
            again = resumed(socket, accepted, positions)
            assert (
                same(joined([accepted, *[frame for frame in rest if frame["t"] == "delta"], *again[1:]]))
                == (undisturbed[name])
            ), name
