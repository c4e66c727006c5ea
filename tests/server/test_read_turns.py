"""How the sockets of a server share the time for parsing."""

import asyncio
from itertools import count

import pytest
from websockets.frames import Opcode

from app.server import run
from app.server.read_turns import MESSAGE_S, TURN_S, ReadTurns
from app.server.websocket_protocol import WebSocketProtocol
from tests.api.serving import until
from tests.server.test_websocket_protocol import open_websocket, read_frames
from tests.server.websocket_frames import TEXT, frame
from tests.server.wire import on_uvloop, served


class Steps(ReadTurns):
    """Steps that each take a part of a period's time; notes their names, and a bar at the end of each period."""

    def __init__(self, part: float) -> None:
        super().__init__(lambda: self.now)
        self.noted = ""
        self.now = 0.0
        self._part = part

    def begin(self, name: str, number: int, part: float | None = None, client: str = "x") -> None:
        """Ask for a number of steps, perhaps of another part, for a client's socket."""
        left = iter(range(number - 1, -1, -1))

        def step() -> bool:
            self.noted += name
            self.now += TURN_S * (self._part if part is None else part)
            return next(left) > 0

        self.take(client, step)

    def _end_period(self) -> None:
        self.noted += "|"
        super()._end_period()


async def test_what_fits_into_the_period_is_done_at_once():
    steps = Steps(part=0.1)
    steps.begin("a", 2)
    steps.begin("b", 3)
    assert steps.noted == "aabbb"


async def test_those_that_wait_take_steps_in_rotation():
    steps = Steps(part=0.5)
    steps.begin("a", 3)
    steps.begin("b", 2)
    steps.begin("c", 1)
    await until(lambda: steps.noted == "aa|ab|cb|")


async def test_clients_take_turns_however_many_sockets_they_have():
    steps = Steps(part=1)
    for name in "abc":
        steps.begin(name, 2, client="many")
    steps.begin("d", 3, client="one")
    await until(lambda: steps.noted == "a|a|d|b|d|c|d|b|c|")


async def test_a_step_that_takes_longer_than_a_period_ends_it():
    steps = Steps(part=3)
    steps.begin("a", 2)
    steps.begin("b", 1)
    await until(lambda: steps.noted == "a|a|b|")


async def test_many_short_steps_are_one_turn_beside_long_ones():
    """Parts of a long message do not each wait for a rotation of those whose frames are tiny."""
    steps = Steps(part=0.5)
    steps.begin("a", 5)
    steps.begin("b", 20, part=0.005)
    await until(lambda: steps.noted == f"aa|a{'b' * 20}a|a|")


async def test_the_time_of_an_earlier_period_does_not_count():
    steps = Steps(part=1)
    steps.begin("a", 1)
    await until(lambda: steps.noted == "a|")
    steps.begin("b", 2)
    await until(lambda: steps.noted == "a|b|b|")


async def test_what_the_application_needs_for_a_message_counts():
    """The period of the message, the next one and half of the third are for it."""
    steps = Steps(part=0.25)

    def message() -> bool:
        steps.noted += "a"
        steps.owe(round(2.5 * TURN_S / MESSAGE_S))
        return False

    steps.take("x", message)
    steps.begin("b", 1)
    await until(lambda: steps.noted == "a||b|")


@on_uvloop
async def test_all_bytes_of_messages_are_owed(monkeypatch):
    owed: list[int] = []

    class Noted(ReadTurns):
        def owe(self, num_bytes):
            owed.append(num_bytes)
            super().owe(num_bytes)

    monkeypatch.setattr(run, "ReadTurns", Noted)
    hello = b'{"t":"hello","protocol":"quire.v1"}'
    beginning, rest = b'{"t":"ping",', b'"x":[' + b"[]," * 20_000 + b"0]}"
    async with served() as server:
        reader, writer = await open_websocket(server)
        writer.write(frame(TEXT, hello) + frame(TEXT, beginning, fin=False) + frame(Opcode.CONT, rest))
        assert [len(await read_frames(reader, TEXT)) for _ in range(2)] == [1, 1]  # welcome, pong
        assert owed == [len(hello), len(beginning) + len(rest)]
        writer.close()
        await until(lambda: server.num_connections == 0)


@pytest.fixture
def periods(monkeypatch):
    """The periods of a server whose slices are each said to take longer than one; each appends to it."""
    ended: list[None] = []
    now = count()

    class Counted(ReadTurns):
        def _end_period(self):
            ended.append(None)
            super()._end_period()

    monkeypatch.setattr(run, "ReadTurns", lambda: Counted(lambda: next(now) * 2 * TURN_S))
    return ended


@on_uvloop
async def test_a_flood_of_frames_leaves_time_to_others(periods):
    """Two sockets send frames that nobody needs, and a message."""
    flood = frame(Opcode.PONG) * 8000
    async with served() as server:
        opened = [await open_websocket(server) for _ in range(2)]
        for _, writer in opened:
            writer.write(flood + frame(TEXT, b'{"t":"hello","protocol":"quire.v1"}'))
        answers = await asyncio.gather(*(read_frames(reader, TEXT) for reader, _ in opened))
        assert [frames[-1][0] for frames in answers] == [TEXT, TEXT]
        assert len(periods) >= 2 * len(flood) // 1024
        for _, writer in opened:
            writer.close()
        await until(lambda: server.num_connections == 0)


@on_uvloop
async def test_what_follows_a_flood_is_read(periods):
    """Reading pauses while received bytes wait for their turn, and goes on when they are parsed."""
    async with served() as server:
        reader, writer = await open_websocket(server)
        for _ in range(3):
            writer.write(frame(Opcode.PONG) * 3000)
            await asyncio.sleep(0)
        writer.write(frame(Opcode.CLOSE, b"\x03\xe8"))
        writer.write_eof()
        assert await read_frames(reader) == [(Opcode.CLOSE, b"\x03\xe8")]
        await until(lambda: server.num_connections == 0)
        writer.close()


@on_uvloop
async def test_frames_that_cannot_be_processed_close_their_own_connection(periods, monkeypatch):
    """They may be parsed in the turn of another connection, which goes on."""
    async with served() as server:
        (reader, writer), (other_reader, other_writer) = [await open_websocket(server) for _ in range(2)]
        broken = next(iter(server.server.server_state.connections))

        def fail(self) -> None:
            raise RuntimeError("of a test")

        monkeypatch.setattr(WebSocketProtocol, "handle_pong", lambda self, _: fail(self) if self is broken else None)
        for each in (writer, other_writer):
            each.write(frame(Opcode.PONG) * 3000)
        await until(lambda: server.num_connections == 1)
        (left,) = server.server.server_state.connections
        assert left is not broken
        hello = frame(TEXT, b'{"t":"hello","protocol":"quire.v1"}')
        for each in (writer, other_writer):
            each.write(hello)
        ends = await asyncio.gather(read_frames(reader, TEXT), read_frames(other_reader, TEXT))
        assert sorted(frames[-1:] != [] and frames[-1][0] == TEXT for frames in ends) == [False, True]
        other_writer.close()
        writer.close()
