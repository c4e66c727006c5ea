"""What watchers cost the engine thread and the event loop of `quire serve`, for each token.

32 streams of server-sent events are read by a process of clients, turn after turn, with watchers and with nobody. The
times of the server's threads are read from the system, before and after a turn, when all of them sleep. The model has
one thread: with several, the engine thread's part of a step would depend on who else has the cores.

    a watcher       reads and decodes in a process of its own, and draws nothing
    16 watchers     the same, as many as may watch
    a stalled one   reads nothing
    Chromium        draws the engine on the same cores: the time between tokens is reported
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from app.commands.measuring.workload import Workload
from app.streaming.live.live_room import MAX_WATCHERS
from benchmarks.cpu.cells import draw_prompts
from benchmarks.gpu.serving import ask
from benchmarks.live.engine_cells import ORDER
from benchmarks.live.watching import Watch, Watched, chromium, find_chromium, watcher_process
from benchmarks.server_process import ServerProcess, listening
from benchmarks.threads import threads_of

WATCHER, WATCHERS, STALLED, CHROMIUM = "a watcher", f"{MAX_WATCHERS} watchers", "a stalled one", "Chromium"
NUM_WATCHERS = {WATCHER: 1, WATCHERS: MAX_WATCHERS, STALLED: 1}
NUM_STREAMS, NUM_PROMPT, NUM_NEW = 32, 64, 1000
VOCAB_SIZE = 3072  # those of `guide` behind them are not needed
ENGINE, ENCODER = "quire-engine", "quire-live_0"  # threads of the server
ONE_THREAD = {"OMP_NUM_THREADS": "1"}


class Spent(NamedTuple):
    """Processor seconds of a server's engine thread, event loop, and thread that encodes pictures."""

    engine_s: float = 0.0
    loop_s: float = 0.0
    encoder_s: float = 0.0

    @classmethod
    def by(cls, pid: int) -> Spent:
        """Return the times of a server so far."""
        threads = [*threads_of(pid)]
        named = {name: sum(one.running_s for one in threads if one.name == name) for name in (ENGINE, ENCODER)}
        return cls(named[ENGINE], sum(one.running_s for one in threads if one.is_first), named[ENCODER])

    def since(self, before: Spent) -> Spent:
        """Return the seconds since then."""
        return Spent(*(now - then for now, then in zip(self, before, strict=True)))


class Turn(NamedTuple):
    """The streams of one turn, from the first request to the last token.

    Attributes:
        p99_ms: between tokens, of all streams.
        watched: what watchers have received.
    """

    spent: Spent
    seconds: float
    p99_ms: float
    watched: Watched


class Repeat(NamedTuple):
    """The turns of one repeat with watchers, and those with nobody: as many."""

    on: Sequence[Turn]
    off: Sequence[Turn]

    def more(self, *fields: str) -> float:
        """Return how much more processor time these threads have taken for a token, as a share."""
        return _seconds(self.on, fields) / _seconds(self.off, fields) - 1

    @property
    def message_ms(self) -> float:
        """Milliseconds that the event loop has taken for a message; 0 if the messages are not known."""
        num_messages = sum(turn.watched.num_messages for turn in self.on)
        more_s = _seconds(self.on, ["loop_s"]) - _seconds(self.off, ["loop_s"])
        return 1000 * more_s / num_messages if num_messages else 0.0


@dataclass
class Served:
    """All that was measured beside some watchers."""

    num_watchers: int
    repeats: list[Repeat] = field(default_factory=list)

    @property
    def watched(self) -> list[Turn]:
        """The turns with watchers."""
        return [turn for repeat in self.repeats for turn in repeat.on]

    @property
    def unwatched(self) -> list[Turn]:
        """The turns with nobody."""
        return [turn for repeat in self.repeats for turn in repeat.off]

    @property
    def token_us(self) -> list[float]:
        """Microseconds of engine thread and event loop for a token, of each turn with nobody: how much turns differ."""
        return [1e6 * (turn.spent.engine_s + turn.spent.loop_s) / NUM_STREAMS / NUM_NEW for turn in self.unwatched]

    @property
    def encoding_ms(self) -> list[float]:
        """Milliseconds of the encoder for a picture, of each turn; none if their number is not known."""
        return [
            1000 * turn.spent.encoder_s / turn.watched.num_pictures
            for turn in self.watched
            if turn.watched.num_pictures
        ]

    @property
    def reading_ms(self) -> list[float]:
        """Milliseconds that a watcher has taken to read and decode a message, of each turn; none if none was read."""
        watched = (turn.watched for turn in self.watched if turn.watched.num_messages)
        return [1000 * one.reading_s / one.num_messages for one in watched]

    @property
    def bytes_per_s(self) -> list[float]:
        """Bytes a second for each watcher, of each turn."""
        return [turn.watched.num_bytes / turn.seconds / self.num_watchers for turn in self.watched]


def measure(names: Sequence[str], repeats: int, folder: Path) -> dict[str, Served]:
    """Measure beside each of these watchers in every repeat, and print a line for each. Blocks."""
    found = {name: Served(NUM_WATCHERS.get(name, 1)) for name in names}
    with _serving(folder) as server, ExitStack() as stack:
        ways = _ways(server, names, folder, stack)
        _turn(server, None, folder)  # warms up, and leaves the prompts in the prefix cache for all turns
        for number in range(repeats):
            for name, watch in ways.items():
                turns = [(is_on, _turn(server, watch if is_on else None, folder)) for is_on in ORDER]
                on, off = ([turn for was_on, turn in turns if was_on is is_on] for is_on in (True, False))
                repeat = Repeat(on, off)
                found[name].repeats.append(repeat)
                more = 100 * repeat.more("engine_s", "loop_s")
                print(f"{number + 1}/{repeats} beside {name}: {more:+.2f} % of processor time", flush=True)
    return found


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


def _ways(server: ServerProcess, names: Sequence[str], folder: Path, stack: ExitStack) -> dict[str, Watch]:
    watchers = stack.enter_context(watcher_process(server, folder))
    ways = {name: watchers(NUM_WATCHERS[name], name != STALLED) for name in names if name in NUM_WATCHERS}
    if CHROMIUM in names and (executable := find_chromium()):
        ways[CHROMIUM] = stack.enter_context(chromium(server, executable))
    return ways


def _turn(server: ServerProcess, watch: Watch | None, folder: Path) -> Turn:
    prompts = tuple(map(tuple, draw_prompts([NUM_PROMPT] * NUM_STREAMS, VOCAB_SIZE, "live")))
    with watch() if watch else nullcontext(Watched()) as watched:
        before = Spent.by(server.pid)
        answers = ask(server, Workload(prompts, (NUM_NEW,) * NUM_STREAMS), folder)
        spent = Spent.by(server.pid).since(before)
    return Turn(spent, answers["seconds"], answers["itl_ms"]["p99"], watched)


def _seconds(turns: Sequence[Turn], fields: Sequence[str]) -> float:
    seconds: float = sum(getattr(turn.spent, name) for turn in turns for name in fields)
    return seconds
