"""What watchers cost the engine thread and the event loop of `quire serve`, for each token.

32 streams of server-sent events go on all the time in one server, whose clients are a process of their own. Turns of
two seconds follow each other: with nobody, with a watcher, with one that reads nothing, with 16, and the same back. So
each kind has been as early as late, and a machine that becomes faster or slower changes all of them alike. A round is
compared within itself; each begins with another kind.

The model has one thread: with several, the engine thread's part of a step would depend on who else has the cores.

    a watcher       reads and decodes in a process of its own, and draws nothing
    16 watchers     the same, as many as may watch
    a stalled one   reads nothing
    Chromium        draws the engine on the same cores, in rounds of its own: the time between tokens is reported
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from app.streaming.live.live_room import MAX_WATCHERS
from benchmarks.live.spent import Spent
from benchmarks.live.watching import Watch, Watched, chromium, find_chromium, watcher_process
from benchmarks.server_process import ServerProcess, listening
from benchmarks.side import Program, with_checkout

NOBODY = "nobody"
WATCHER, WATCHERS, STALLED, CHROMIUM = "a watcher", f"{MAX_WATCHERS} watchers", "a stalled one", "Chromium"
NUM_WATCHERS = {WATCHER: 1, STALLED: 1, WATCHERS: MAX_WATCHERS}
NUM_STREAMS, NUM_NEW = 32, 1000
TURN_S = 2.0
SETTLE_S = 0.4
"""From when those who watch have a picture to the turn; a stalled one's buffers are full then."""
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
ANSWER_S = 600.0  # on a busy machine
ENGINE_AND_LOOP = ("engine_s", "loop_s")


class Turn(NamedTuple):
    """Two seconds of the streams.

    Attributes:
        num_tokens: of all streams.
        p99_ms: between tokens, of all streams.
        watched: what watchers have received, in a time that is somewhat longer.
    """

    spent: Spent
    num_tokens: float
    seconds: float
    p99_ms: float
    watched: Watched

    @property
    def num_messages(self) -> float:
        """How many messages all watchers have received in the turn."""
        return self.watched.messages_per_s * self.seconds


class Pair(NamedTuple):
    """The turns of one round with some watchers, and those with nobody: as many."""

    on: Sequence[Turn]
    off: Sequence[Turn]

    def more(self, *fields: str) -> float:
        """Return how much more processor time these threads have taken for a token, as a share."""
        return _token_s(self.on, fields) / _token_s(self.off, fields) - 1

    @property
    def message_ms(self) -> float:
        """Milliseconds that the event loop has taken for a message; 0 if the messages are not known."""
        num_messages = sum(turn.num_messages for turn in self.on)
        more_s = _token_s(self.on, ["loop_s"]) - _token_s(self.off, ["loop_s"])
        return 1000 * more_s * sum(turn.num_tokens for turn in self.on) / num_messages if num_messages else 0.0


@dataclass
class Served:
    """All that was measured beside some watchers."""

    num_watchers: int
    pairs: list[Pair] = field(default_factory=list)

    @property
    def watched(self) -> list[Turn]:
        """The turns with watchers."""
        return [turn for pair in self.pairs for turn in pair.on]

    @property
    def unwatched(self) -> list[Turn]:
        """The turns with nobody."""
        return [turn for pair in self.pairs for turn in pair.off]

    @property
    def token_us(self) -> list[float]:
        """Microseconds of engine thread and event loop for a token, of each turn with nobody: how much turns differ."""
        return [1e6 * _token_s([turn], ENGINE_AND_LOOP) for turn in self.unwatched]

    @property
    def encoding_ms(self) -> list[float]:
        """Milliseconds of the encoder for a picture, of each turn; none if their number is not known."""
        return [
            1000 * turn.spent.encoder_s / (turn.watched.pictures_per_s * turn.seconds)
            for turn in self.watched
            if turn.watched.num_pictures
        ]

    @property
    def reading_ms(self) -> list[float]:
        """Milliseconds that a watcher has taken to read and decode a message, of each turn; none if none was read."""
        watched = (turn.watched for turn in self.watched if turn.watched.num_messages)
        return [1000 * one.reading_s / one.num_messages for one in watched]

    @property
    def token_s(self) -> float:
        """Processor seconds of engine thread and event loop for a token, with nobody."""
        return _token_s(self.unwatched, ENGINE_AND_LOOP)

    @property
    def pictures_per_token(self) -> float:
        """Pictures for a token, in the turns with watchers; 0 if their number is not known."""
        num_pictures = sum(turn.watched.pictures_per_s * turn.seconds for turn in self.watched)
        return num_pictures / sum(turn.num_tokens for turn in self.watched)

    @property
    def bytes_per_s(self) -> list[float]:
        """Bytes a second for each watcher, of each turn."""
        return [turn.watched.bytes_per_s / self.num_watchers for turn in self.watched]


def measure(names: Sequence[str], repeats: int, folder: Path) -> dict[str, Served]:
    """Measure beside each of these watchers, and print a line for each round. Blocks.

    A repeat is as many rounds as there are kinds that take turns: each has then been at every place.
    """
    found = {name: Served(NUM_WATCHERS.get(name, 1)) for name in names}
    with _serving(folder) as server, ExitStack() as stack:
        streams = stack.enter_context(_streaming(server, folder))
        for ways in _ways(server, names, folder, stack):
            kinds = [NOBODY, *ways]
            for number in range(repeats * len(kinds)):
                turns: dict[str, list[Turn]] = {kind: [] for kind in kinds}
                for kind in order(kinds, number):
                    turns[kind].append(_turn(streams, ways.get(kind)))
                for name in ways:
                    found[name].pairs.append(Pair(turns[name], turns[NOBODY]))
                more = (f"{name} {100 * found[name].pairs[-1].more(*ENGINE_AND_LOOP):+.2f} %" for name in ways)
                print(f"{number + 1}/{repeats * len(kinds)}: {', '.join(more)}", flush=True)
    return found


def order(kinds: Sequence[str], number: int) -> list[str]:
    """Return the turns of a round: each kind as early as late, and in every round another one first."""
    first = number % len(kinds)
    forth = [*kinds[first:], *kinds[:first]]
    return [*forth, *reversed(forth)]


def available(names: Sequence[str]) -> list[str]:
    """Return those of these watchers that can be had on this machine: Chromium may not be installed."""
    return [name for name in names if name != CHROMIUM or find_chromium()]


@contextmanager
def _serving(folder: Path) -> Iterator[ServerProcess]:
    options = ("guide", "--max-num-seqs", str(NUM_STREAMS))
    environ = os.environ | ONE_THREAD
    log, program = folder / "server.log", "benchmarks.live.named_server"
    with listening(*options, log=log, environ=environ, program=program) as server:
        asyncio.run(server.wait_until_ready())
        yield server


@contextmanager
def _streaming(server: ServerProcess, folder: Path) -> Iterator[Program]:
    """Start the clients, and yield them when all streams go on."""
    command = [sys.executable, "-m", "benchmarks.live.stream_process", str(server.port), str(server.pid)]
    with Program(command, folder / "streams.log", with_checkout(), "streams", ANSWER_S) as program:
        program.ask("begin", num_streams=NUM_STREAMS, num_new=NUM_NEW)
        yield program


def _ways(server: ServerProcess, names: Sequence[str], folder: Path, stack: ExitStack) -> Iterator[Mapping[str, Watch]]:
    """Yield those who watch in turns: first the watchers, and last, since nothing else may watch, the page."""
    watchers = stack.enter_context(watcher_process(server.port, folder))
    if ways := {name: watchers(NUM_WATCHERS[name], name != STALLED) for name in names if name in NUM_WATCHERS}:
        yield ways
    if CHROMIUM in names and (executable := find_chromium()):
        yield {CHROMIUM: stack.enter_context(chromium(server, executable))}


def _turn(streams: Program, watch: Watch | None) -> Turn:
    with watch() if watch else nullcontext(Watched()) as watched:
        time.sleep(SETTLE_S)
        found = streams.ask("turn", seconds=TURN_S)
    return Turn(Spent(*found["spent"]), found["num_tokens"], found["seconds"], found["p99_ms"], watched)


def _token_s(turns: Sequence[Turn], fields: Sequence[str]) -> float:
    """Return the processor seconds of these threads for a token."""
    seconds: float = sum(getattr(turn.spent, name) for turn in turns for name in fields)
    return seconds / sum(turn.num_tokens for turn in turns)
