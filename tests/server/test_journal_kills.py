"""Answers that a kill -9 of the server cuts: the next process goes on with the same bytes, every token once."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.api.resuming import RESUME, Event, events_of, told
from tests.server.processes import HANG_S, RunningServer
from tests.server.processes import serving as started_as_users_do
from tests.server.quick_start import serving
from tests.server.resumed_reading import CHAT, body, ids_of_calls, same, without_ends
from tests.server.resumed_sockets import frames_until, opened, send
from tests.server.test_resuming import CASES
from tests.server.thinking_checkpoint import write_thinking_checkpoint

Starting = Callable[..., AbstractContextManager[RunningServer]]


def long(name: str) -> dict[str, Any]:
    """The body of a case, of an answer that is not complete when the server is killed, if it can be long."""
    thinks = "thinking_token_budget" in CASES[name]
    has_grammar = bool({"regex", "response_format", "tools"} & CASES[name].keys())
    options = {"max_tokens": 300, "ignore_eos": not has_grammar, "chat_template_kwargs": {"enable_thinking": thinks}}
    return body(**{**CASES[name], **options})


class Reader:
    """Reads a resumable stream to its end or its break."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.path = self.text = ""
        self.has_enough = asyncio.Event()

    async def read(self, client: httpx.AsyncClient, count: int) -> None:
        """Read, and set `has_enough` when `count` events have come, or all."""
        with suppress(httpx.TransportError):
            async with client.stream("POST", CHAT, json=long(self.name), headers=RESUME) as response:
                assert response.headers["x-quire-durable"] == "1"
                self.path = f"/v1/streams/{response.headers['x-quire-stream-id']}"
                async for piece in response.aiter_text():
                    self.text += piece
                    if self.text.count("\n\n") >= count:
                        self.has_enough.set()
        self.has_enough.set()


async def read_all(url: str, count: int, end: Callable[[], None]) -> list[Reader]:
    """Read all cases at once; call `end` when each has `count` events."""
    readers = [*map(Reader, CASES)]
    async with httpx.AsyncClient(base_url=url, timeout=HANG_S) as client, asyncio.TaskGroup() as group:
        for reader in readers:
            group.create_task(reader.read(client, count))
        for reader in readers:
            await reader.has_enough.wait()
        end()
    return readers


def complete_events(text: str) -> list[Event]:
    """The events that came whole, but those that always come again."""
    return without_ends(events_of(text[: text.rindex("\n\n") + 2])) if "\n\n" in text else []


def check_rest(client: httpx.Client, reader: Reader, undisturbed: dict[str, dict[str, Any]]) -> None:
    """Read the rest of an answer; with what a reader had it must be the undisturbed one."""
    events = complete_events(reader.text)
    rest = client.get(reader.path, headers={"last-event-id": events[-1].id or ""} if events else {})
    assert rest.status_code == 200, rest.text
    joined = told([*events, *events_of(rest.text)])
    assert all(ids_of_calls(joined))
    assert same(joined) == undisturbed[reader.name], reader.name


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_thinking_checkpoint(tmp_path_factory.mktemp("kills") / "thinking"))


@pytest.fixture(scope="module")
def undisturbed(model: str) -> dict[str, dict[str, Any]]:
    with serving(model) as server:
        server.wait_until_ready()
        with httpx.Client(base_url=server.url, timeout=HANG_S) as client:
            return {name: same(told(events_of(client.post(CHAT, json=long(name)).text))) for name in CASES}


@pytest.mark.parametrize(("count", "start"), [(1, serving), (6, started_as_users_do), (40, serving)])
def test_a_killed_server_goes_on_with_the_same_bytes(
    count: int, start: Starting, tmp_path: Path, model: str, undisturbed: dict[str, dict[str, Any]]
):
    options = (model, "--journal", str(tmp_path / "journal"))
    with start(*options) as server:
        server.wait_until_ready()
        had = asyncio.run(read_all(server.url, count, lambda: server.process.send_signal(signal.SIGKILL)))
        server.process.wait(HANG_S)
    with start(*options) as server, httpx.Client(base_url=server.url, timeout=HANG_S) as client:
        server.wait_until_ready()
        for reader in had:
            check_rest(client, reader, undisturbed)
        continued = re.search(
            r'^quire_streams_restored_total{.*outcome="continued"} (\d+)', client.get("/metrics").text, re.M
        )
        assert continued is not None and int(continued[1]) > 0, "all answers had ended before the kill"


def test_a_long_answer_goes_on_without_being_generated_again(tmp_path: Path):
    """What was told is computed as a prompt: the steps of the next process are those of the rest."""
    journal, num_tokens = ("--journal", str(tmp_path / "journal")), 700
    fields = {**long("seeded"), "max_tokens": num_tokens, "return_token_ids": False}
    asked = {name: value for name, value in fields.items() if name not in ("stream", "return_token_ids")}
    with serving(*journal) as server, httpx.Client(base_url=server.url, timeout=HANG_S) as client:
        server.wait_until_ready()
        undisturbed = client.post(CHAT, json=fields).text
        with opened(client) as socket:
            send(socket, t="start", id="a", request=asked, ttl_s=60, credit=200)
            frames = [*frames_until(socket, "paused")]
            path = f"/v1/streams/{frames[0]['stream']}"
            num_told = int(client.head(path).headers["x-quire-position"])
            server.process.send_signal(signal.SIGKILL)
        server.process.wait(HANG_S)
    assert 200 < num_told < num_tokens - 100
    with serving(*journal) as server, httpx.Client(base_url=server.url, timeout=HANG_S) as client:
        server.wait_until_ready()
        whole = told(events_of(client.get(path).text))
        assert same(whole) == same(told(events_of(undisturbed)))
        steps = re.search(r"^quire_step_seconds_count(?:{.*})? (\d+)", client.get("/metrics").text, re.M)
        assert steps is not None and 0 < int(steps[1]) <= num_tokens - num_told + 20


def test_a_planned_restart_loses_nothing(tmp_path: Path, model: str, undisturbed: dict[str, dict[str, Any]]):
    """SIGTERM with a drain that is too short: the connection breaks off, and the answer goes on."""
    options = (model, "--journal", str(tmp_path / "journal"), "--drain-timeout", "0")
    with serving(*options) as server:
        server.wait_until_ready()
        had = asyncio.run(read_all(server.url, 6, lambda: server.process.send_signal(signal.SIGTERM)))
        assert server.end() == 0
    assert any("[DONE]" not in reader.text for reader in had)
    with serving(*options) as server, httpx.Client(base_url=server.url, timeout=HANG_S) as client:
        server.wait_until_ready()
        for reader in had:
            check_rest(client, reader, undisturbed)


def test_a_cancelled_answer_stays_cancelled(tmp_path: Path):
    journal = ("--journal", str(tmp_path / "journal"))
    with serving(*journal) as server:
        server.wait_until_ready()
        with httpx.Client(base_url=server.url, timeout=HANG_S) as client:
            with client.stream("POST", CHAT, json=long("seeded"), headers=RESUME) as response:
                next(response.iter_text())
            path = f"/v1/streams/{response.headers['x-quire-stream-id']}"
            assert client.delete(path).status_code == 204
            state = client.head(path).headers["x-quire-state"]
        server.process.send_signal(signal.SIGKILL)
        server.process.wait(HANG_S)
    with serving(*journal) as server:
        server.wait_until_ready()
        assert httpx.head(f"{server.url}{path}", timeout=HANG_S).headers["x-quire-state"] == state
