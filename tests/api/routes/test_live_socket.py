"""quire.live.v1 on a real server: who may watch, what comes, and how a socket is closed."""

import asyncio
import json
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as open_socket
from websockets.exceptions import ConnectionClosed, InvalidStatus

from app.api.routes.live_socket import MAX_HELLO_BYTES, live_endpoint
from app.client.live_picture import LivePicture
from app.contract.engine_picture import Watch
from app.contract.engine_status import EngineState
from app.streaming.live.live_room import MAX_WATCHERS
from tests.api.serving import HANG_S, make_app, serving, until
from tests.fakes import FakeEngine
from tests.streaming.live.pictures import group, picture, table

HELLO = json.dumps({"t": "hello", "key": "k1"})
ONE = [group("chatcmpl-a", [table([1, 2])], "key-1"), group("chatcmpl-b", [table([3])], "key-2")]


def connect(url: str, **options: Any) -> open_socket:
    options = {"subprotocols": ["quire.live.v1"], "compression": None, "proxy": None, "max_size": None} | options
    return open_socket(url.replace("http", "ws") + "/live", **options)


def started() -> FakeEngine:
    engine = FakeEngine(held=True)
    engine.start()
    return engine


def watches(engine: FakeEngine) -> list[bool]:
    return [command.on for command in engine.port.posted if isinstance(command, Watch)]


def num_watchers(app: Starlette) -> int:
    return int(app.state.context.live.num_watchers)


async def closed(socket: ClientConnection) -> tuple[int, str]:
    """Read to the end; return the close code and its reason."""
    async with asyncio.timeout(HANG_S):
        try:
            while True:
                await socket.recv()
        except ConnectionClosed as end:
            assert end.rcvd is not None
            return end.rcvd.code, end.rcvd.reason


async def received(socket: ClientConnection, seen: LivePicture) -> LivePicture:
    async with asyncio.timeout(HANG_S):
        message = await socket.recv()
    assert isinstance(message, bytes)
    seen.receive(message)
    return seen


async def test_pictures_come_as_messages_while_somebody_watches():
    engine = started()
    async with serving(await make_app(engine)) as url:
        async with connect(url) as socket:
            assert socket.subprotocol == "quire.live.v1"
            await until(lambda: watches(engine) == [True])
            seen = LivePicture()
            for number in (1, 2):
                engine.port.show(picture(number, [group("chatcmpl-a", [table(range(1, number + 2))])]))
                await received(socket, seen)
            assert seen.number == 2 and [*seen.owners[:4]] == [1, 1, 1, 0]
            assert seen.state is not None and seen.state.figures.model == "guide"
        await until(lambda: watches(engine) == [True, False])


@pytest.mark.parametrize("way", ["header", "hello"])
async def test_a_key_says_whose_requests_are_shown(way: str):
    engine = started()
    app, header = await make_app(engine, api_key=["k1", "k2"]), {"x-api-key": "k1"} if way == "header" else {}
    async with serving(app) as url, connect(url, additional_headers=header) as socket:
        if way == "hello":
            await socket.send(HELLO)
        await until(lambda: watches(engine))
        engine.port.show(picture(1, ONE))
        seen = await received(socket, LivePicture())
        assert seen.state is not None and seen.state.view == "own"
        assert [one.id for one in seen.state.groups if one.own] == ["chatcmpl-a"]
        assert [*seen.owners[:3]] == [1, 1, 0]


async def test_two_keys_see_nothing_of_each_other_in_any_byte():
    engine = started()
    app = await make_app(engine, api_key=["k1", "k2"])
    async with serving(app) as url, AsyncExitStack() as stack:
        sockets = [
            await stack.enter_async_context(connect(url, additional_headers={"x-api-key": key})) for key in ("k1", "k2")
        ]
        await until(lambda: num_watchers(app) == 2)
        for number in (1, 2):
            engine.port.show(picture(number, ONE))
            for socket, others in zip(sockets, (b"chatcmpl-b", b"chatcmpl-a"), strict=True):
                message = await socket.recv()
                assert isinstance(message, bytes)
                assert others not in message and b"key-" not in message


@pytest.mark.parametrize(("frame", "code"), [
    (json.dumps({"t": "hello", "key": "no"}), 4401), (json.dumps({"t": "hello"}), 4401),
    (json.dumps({"t": "hello", "key": ["k1"]}), 4401), (json.dumps({"t": "start", "key": "k1"}), 4401),
    ("{", 4400), ("[1]", 4400), ("[" * 5000, 4400), (b"hello", 1003),
    (json.dumps({"t": "hello", "key": "k1" * MAX_HELLO_BYTES}), 1009),
    (json.dumps({"t": "hello", "key": "€" * (MAX_HELLO_BYTES // 2)}, ensure_ascii=False), 1009),
])  # fmt: skip
async def test_without_a_key_nothing_is_shown(frame: str | bytes, code: int):
    engine = started()
    async with serving(await make_app(engine, api_key=["k1"])) as url, connect(url) as socket:
        await socket.send(frame)
        assert (await closed(socket))[0] == code
    assert watches(engine) == []


async def test_without_a_hello_the_socket_is_closed_in_time():
    engine = started()
    app = await make_app(engine, api_key=["k1"])
    app.router.routes.insert(0, WebSocketRoute("/live", partial(live_endpoint, hello_timeout_s=0.01)))
    async with serving(app) as url, connect(url) as socket:
        assert await closed(socket) == (4408, "no hello in time")
    assert watches(engine) == []


async def test_a_wrong_key_in_a_header_is_refused_before_the_accept():
    async with serving(await make_app(started(), api_key=["k1"])) as url:
        for header in ({"x-api-key": "no"}, {"authorization": "Bearer no"}):
            with pytest.raises(InvalidStatus) as refused:
                await connect(url, additional_headers=header)
            assert refused.value.response.status_code == 401


async def test_other_origins_draining_servers_and_servers_without_a_view_refuse():
    engine = started()
    async with serving(await make_app(engine)) as url:
        with pytest.raises(InvalidStatus) as refused:
            await connect(url, additional_headers={"Origin": "http://evil.example"})
        assert refused.value.response.status_code == 403
        await engine.drain(1)
        with pytest.raises(InvalidStatus) as refused:
            await connect(url)
        assert refused.value.response.status_code == 503
    async with serving(await make_app(started(), live_view="off")) as url:
        with pytest.raises(InvalidStatus) as refused:
            await connect(url)
        assert refused.value.response.status_code == 404 and b"--live-view off" in refused.value.response.body


@pytest.mark.parametrize("subprotocols", [None, ["quire.v1"]])
async def test_another_subprotocol_is_closed(subprotocols: Any):
    async with serving(await make_app(started())) as url, connect(url, subprotocols=subprotocols) as socket:
        assert await closed(socket) == (4406, "the subprotocol must be quire.live.v1")


@pytest.mark.parametrize("frames", [[HELLO, HELLO], [HELLO, "x"]])
async def test_a_watcher_says_hello_once_and_nothing_else(frames: list[str]):
    async with serving(await make_app(started())) as url, connect(url) as socket:
        for frame in frames:
            await socket.send(frame)
        assert (await closed(socket))[0] == 1008


async def test_the_seventeenth_watcher_is_told_that_there_are_enough():
    engine = started()
    app = await make_app(engine)
    async with serving(app) as url, AsyncExitStack() as stack:
        for _ in range(MAX_WATCHERS):
            await stack.enter_async_context(connect(url))
        await until(lambda: num_watchers(app) == MAX_WATCHERS)
        async with connect(url) as socket:
            code, reason = await closed(socket)
        assert code == 4429 and reason.startswith("16 watch already")
        assert watches(engine) == [True]
    await until(lambda: watches(engine) == [True, False])


async def test_a_drain_closes_the_sockets():
    engine = started()
    app = await make_app(engine)
    async with serving(app) as url, connect(url) as socket:
        await until(lambda: watches(engine))
        drain = asyncio.create_task(app.state.context.drain.run(HANG_S))
        assert await closed(socket) == (1012, "the server is shutting down")
        await drain
    assert watches(engine) == [True, False]


async def test_whoever_opens_and_closes_again_and_again_leaves_nothing():
    engine = started()
    app = await make_app(engine)
    async with serving(app) as url:
        for number in range(30):
            async with connect(url) as socket:
                if number % 2:
                    socket.transport.abort()
        await until(lambda: num_watchers(app) == 0 and watches(engine)[-1:] == [False])
        assert watches(engine) == [True, False] * (len(watches(engine)) // 2)


async def test_a_client_that_reads_nothing_is_cut_after_the_stall_timeout():
    engine = started()
    app = await make_app(engine, stall_timeout=0.2)
    async with serving(app) as url, connect(url, max_queue=1) as socket:
        await until(lambda: watches(engine))
        socket.transport.pause_reading()
        large = [group(f"chatcmpl-{i}", [table(range(1 + i, 20_000, 150))]) for i in range(150)]
        number = 0
        while num_watchers(app):
            number += 1
            engine.port.show(picture(number, large, num_blocks=20_000, cached=range(1, number % 50 + 2)))
            await asyncio.sleep(0.01)
        assert watches(engine) == [True, False]
        socket.transport.abort()


async def test_a_hostile_number_of_groups_is_shown():
    engine = started()
    async with serving(await make_app(engine)) as url, connect(url) as socket:
        await until(lambda: watches(engine))
        engine.port.show(picture(1, [group(f"chatcmpl-{i}", [table([i + 1])]) for i in range(1000)], num_blocks=1000))
        seen = await received(socket, LivePicture())
        assert [*seen.owners] == [*range(1, 1001)]


async def test_before_the_model_is_loaded_a_watcher_waits():
    engine = started()
    engine.port.state = EngineState.LOADING
    async with serving(await make_app(engine)) as url, connect(url) as socket:
        await until(lambda: watches(engine))
        engine.port.state = EngineState.READY
        engine.port.show(picture(1))
        assert (await received(socket, LivePicture())).number == 1
