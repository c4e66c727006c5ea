"""What a client of the soak does: one visit, and what came of it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from enum import StrEnum
from typing import NamedTuple

from benchmarks.api_client import ApiClient
from benchmarks.isolation.attack_client import Client
from benchmarks.isolation.attack_table import ATTACKS
from benchmarks.isolation.attacker import repeat
from benchmarks.resuming.answer_reader import AnswerReader, Broken
from benchmarks.resuming.asked import WEBSOCKET, Asked
from benchmarks.resuming.http_answer import CHAT, HttpAnswer
from benchmarks.resuming.mortal_server import MortalServer
from benchmarks.resuming.oracle import Oracle, reader_of
from benchmarks.resuming.socket_answer import SocketAnswer
from benchmarks.resuming.told import WrongAnswer
from benchmarks.soak.relay import relaying

PAUSE_S, CREDIT = 0.05, 4
MAX_STOPPED_S = 3.0
ATTACKER_KEY, ATTACK_S = "attacker", 5.0
HOSTILE = (
    "brackets", "surrogates", "duplicate_keys", "empty_lists", "stop_strings", "deep_tool", "logprobs_unread",
    "dropped", "cut_off", "given_up", "frames", "fragments", "churn", "small_chunks", "pipelined", "wrong_paths",
    "kept_streams", "unread_streams", "guessed_ids", "endless_keys",
)  # fmt: skip
"""Rows of `isolation` that an attacker chooses of; not grammars, whose caches are larger than what may grow here."""
MAX_RETURNS = 4
TIMEOUT_S = 60.0
CONTEXT = 2048  # of guide
_TOO_LONG = "every good word " * 20_000
_REFUSED = 400


class End(StrEnum):
    """The end of a visit."""

    GOOD = "complete and correct"
    LEFT = "left by the client, correct so far"
    REFUSED = "refused, as it must be"
    ATTACKED = "an attack, whatever came of it"
    MET = "plain, and met by a kill"  # nobody has promised these more
    WRONG = "wrong"
    FAILED = "failed"


class Visit(NamedTuple):
    """What came of one visit; `why` says more of what is wrong."""

    behaviour: str
    asked: Asked
    end: End
    why: str = ""


class Visitor:
    """Clients of one server, whose answers the oracle knows. Loop only."""

    def __init__(self, server: MortalServer, oracle: Oracle, rng: random.Random) -> None:
        self._server = server
        self._oracle = oracle
        self._rng = rng

    async def visit(self, asked: Asked) -> Visit:
        """Behave in one of the ways of BEHAVIOURS."""
        name = self._rng.choices([*BEHAVIOURS], [each.weight for each in BEHAVIOURS.values()])[0]
        behave = BEHAVIOURS[name].behave
        num_kills = await self._server.alive()
        try:
            end = await behave(self, asked)
        except (Broken, OSError, TimeoutError) as error:
            if BEHAVIOURS[name].may_meet_kill and self._server.num_kills > num_kills:
                return Visit(name, asked, End.MET)
            return Visit(name, asked, End.FAILED, f"{type(error).__name__}: {error}")
        except WrongAnswer as error:
            return Visit(name, asked, End.WRONG, str(error))
        return Visit(name, asked, end)

    async def read_plain(self, asked: Asked) -> End:
        """Read an answer that nobody keeps."""
        return await self._read(reader_of(asked, self._server.target, is_kept=False))

    async def read_kept(self, asked: Asked) -> End:
        """Read an answer that can be resumed."""
        return await self._read(reader_of(asked, self._server.target))

    async def read_slowly(self, asked: Asked) -> End:
        """Read a few bytes, or a few tokens, at a time."""
        target = self._server.target
        if asked.kind == WEBSOCKET:
            return await self._read(SocketAnswer(asked, target, credit=CREDIT))
        return await self._read(HttpAnswer(asked, target, pause_s=PAUSE_S))

    async def come_back(self, asked: Asked) -> End:
        """Hang up and come back, several times."""
        reader = reader_of(asked, self._server.target)
        for _ in range(self._rng.randint(1, MAX_RETURNS)):
            await reader.read_some(reader.num_received + self._rng.randint(1, 20))
        return await self._read(reader)

    async def vanish(self, asked: Asked) -> End:
        """Hang up in the middle of an answer, kept or not."""
        reader = reader_of(asked, self._server.target, is_kept=self._rng.random() < 0.5)
        await reader.read_some(self._rng.randint(0, 30))
        return self._left(reader)

    async def cancel(self, asked: Asked) -> End:
        """Cancel a kept answer."""
        reader = reader_of(asked, self._server.target)
        await reader.read_some(self._rng.randint(1, 30))
        await reader.cancel()
        return self._left(reader)

    async def ask_too_much(self, asked: Asked) -> End:
        """Send a prompt that is longer than the context."""
        body = {**asked.body, "messages": [{"role": "user", "content": _TOO_LONG}]}
        answer = await ApiClient(self._server.target, TIMEOUT_S).post(CHAT, body)
        if answer.status != _REFUSED:
            raise WrongAnswer(f"a prompt that is too long got status {answer.status}")
        return End.REFUSED

    async def be_stopped(self, asked: Asked) -> End:
        """Be stopped in the middle of an answer, as by SIGSTOP, and go on."""
        async with relaying(self._server.target) as relay:
            reader = reader_of(asked, relay.target)
            reading = asyncio.ensure_future(self._read(reader))
            try:
                await asyncio.sleep(self._rng.uniform(0, 0.5))
                await relay.stop_for(self._rng.uniform(0, MAX_STOPPED_S))
                return await reading
            finally:
                reading.cancel()

    async def attack(self, asked: Asked) -> End:
        """Do what an attacker of the benchmark `isolation` does, once, with another key."""
        attack = ATTACKS[self._rng.choice(HOSTILE)]
        client = Client(self._server.target.url, CONTEXT, key=ATTACKER_KEY)
        with suppress(TimeoutError):
            async with asyncio.timeout(ATTACK_S):
                await repeat(client, attack.run, 1)
        return End.ATTACKED

    async def _read(self, reader: AnswerReader) -> End:
        await reader.read()
        if difference := reader.told.difference(self._oracle.whole(reader.asked)):
            raise WrongAnswer(difference)
        return End.GOOD

    def _left(self, reader: AnswerReader) -> End:
        if not reader.told.begins(self._oracle.whole(reader.asked)):
            raise WrongAnswer("the beginning is that of another answer")
        return End.LEFT


class Behaviour(NamedTuple):
    """A way to behave, how often it comes, and whether a kill may end it."""

    behave: Callable[[Visitor, Asked], Awaitable[End]]
    weight: int
    may_meet_kill: bool = False


BEHAVIOURS: Mapping[str, Behaviour] = {
    "reads": Behaviour(Visitor.read_plain, 30, may_meet_kill=True),
    "reads, resumable": Behaviour(Visitor.read_kept, 30),
    "comes back": Behaviour(Visitor.come_back, 14),
    "reads slowly": Behaviour(Visitor.read_slowly, 6),
    "vanishes": Behaviour(Visitor.vanish, 9, may_meet_kill=True),
    "cancels": Behaviour(Visitor.cancel, 8, may_meet_kill=True),
    "asks too much": Behaviour(Visitor.ask_too_much, 3, may_meet_kill=True),
    "is stopped": Behaviour(Visitor.be_stopped, 4),
    "attacks": Behaviour(Visitor.attack, 4),
}
