"""A request that ends the process each time it is computed: it fails in the end, and all others go on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx

from app.api.body.answer_journal import MAX_ATTEMPTS
from tests.api.resuming import RESUME, events_of, told
from tests.server.fatal import FATAL_SEED
from tests.server.processes import HANG_S, RunningServer
from tests.server.quick_start import serving
from tests.server.resumed_reading import CHAT, body, same

NUM_STREAMS, FATAL = 20, 10


def asked(number: int) -> dict[str, Any]:
    """The body of an answer; the fatal one is long enough not to be complete when the server is killed."""
    seed, max_tokens = (FATAL_SEED, 1000) if number == FATAL else (number, 60 + 5 * number)
    return body(seed=seed, temperature=1.5, ignore_eos=True, max_tokens=max_tokens)


async def read_until_killed(url: str, kill: Callable[[], None]) -> list[str]:
    """Read all answers at once, and let the server be killed when each has a token; return their paths."""
    paths = [""] * NUM_STREAMS

    async def read(client: httpx.AsyncClient, number: int, has_begun: asyncio.Barrier) -> None:
        with suppress(httpx.TransportError):
            async with client.stream("POST", CHAT, json=asked(number), headers=RESUME) as response:
                paths[number] = f"/v1/streams/{response.headers['x-quire-stream-id']}"
                pieces = response.aiter_text()
                await anext(pieces)
                await has_begun.wait()
                kill()
                async for _ in pieces:
                    pass

    has_begun = asyncio.Barrier(NUM_STREAMS)
    async with httpx.AsyncClient(base_url=url, timeout=HANG_S) as client, asyncio.TaskGroup() as group:
        for number in range(NUM_STREAMS):
            group.create_task(read(client, number, has_begun))
    return paths


def has_failed(server: RunningServer, path: str) -> bool:
    """Wait until the process or the answer has ended; return whether it was the answer."""
    deadline = time.monotonic() + HANG_S
    with httpx.Client(base_url=server.url, timeout=HANG_S) as client:
        while server.process.poll() is None:
            assert time.monotonic() < deadline
            with suppress(httpx.TransportError):
                if client.head(path).headers.get("x-quire-state") == "failed":
                    return True
            time.sleep(0.2)
    return False


async def check_others(url: str, paths: list[str]) -> None:
    """Check that all other answers are those to the same requests when nothing ends the server."""
    others = [number for number in range(NUM_STREAMS) if number != FATAL]
    async with httpx.AsyncClient(base_url=url, timeout=HANG_S) as client:
        undisturbed = await asyncio.gather(*(client.post(CHAT, json=asked(number)) for number in others))
        for number, response in zip(others, undisturbed, strict=True):
            whole = await client.get(paths[number])
            assert same(told(events_of(whole.text))) == same(told(events_of(response.text)))


def test_a_request_that_ends_the_process_fails_alone(tmp_path: Path):
    file = tmp_path / "fatal"
    program, journal = ("tests.server.fatal", str(file)), ("--journal", str(tmp_path / "journal"))
    with serving(*journal, program=program) as server:
        server.wait_until_ready()
        paths = asyncio.run(read_until_killed(server.url, file.touch))
        server.process.wait(HANG_S)
    for _ in range(MAX_ATTEMPTS):
        with serving(*journal, program=program) as server:
            assert not has_failed(server, paths[FATAL])
    with serving(*journal, program=program) as server:
        assert has_failed(server, paths[FATAL])
        assert "begun again three times" in httpx.get(f"{server.url}{paths[FATAL]}", timeout=HANG_S).text
        asyncio.run(check_others(server.url, paths))
    num_beside = [int(line) for line in file.read_text().splitlines()]
    assert len(num_beside) == 1 + MAX_ATTEMPTS
    assert num_beside[0] > 0
    assert num_beside[-1] == 0, "the last time it ran alone"
