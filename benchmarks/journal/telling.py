"""Streams that are told tokens at a fixed rate, as by the engine, and the journal that records them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, cast

from app.contract.admission import admit
from app.contract.engine_status import ModelInfo
from app.contract.events import TokenDelta
from app.contract.ports import EngineClient, EventSink
from app.contract.requests import EngineRequest
from app.contract.sampling_params import SamplingParams
from app.journal.entries import Head
from app.journal.store import JournalStore
from app.loadgen.figures import percentile
from app.observe.families import Histogram
from app.runtime.clock import monotonic
from app.streaming.kept.journal_counts import COMMIT_S
from app.streaming.kept.journaling import Journaling
from app.streaming.kept.live_stream import LiveStream
from benchmarks.streams.gauges import thread_cpu_s

CONTEXT = 1 << 20
CARD = ModelInfo("bench", "0", CONTEXT, CONTEXT, 1000)
JOURNAL_THREAD = "quire-journal"
TOKEN_IDS, TEXT = (5,), " token"
WARM_UP_S = 1.0

Put = Callable[[TokenDelta, int], None]


class Told(NamedTuple):
    """What a run has cost.

    Attributes:
        num_tokens: the tokens of all streams.
        thread_s, loop_s: processor seconds of the journal's thread, and of the event loop with its transcripts, but
            without its timer and the making of deltas, which is the engine's.
        commits_s: the seconds of each commit, the shortest first.
        wal_bytes: the most that the log beside the file has had.
        file_bytes: the file at the end, with the log.
    """

    num_tokens: int
    seconds: float
    thread_s: float
    loop_s: float
    commits_s: list[float]
    wal_bytes: int
    file_bytes: int

    def commit_s(self, share: float) -> float:
        """Return the seconds that this share of the commits did not exceed."""
        return percentile(self.commits_s, share)


class Teller:
    """Stands for the engine: its requests are told tokens from outside, and nothing pauses.

    Attributes:
        puts: the ids of the requests, and where their tokens go.
    """

    def __init__(self) -> None:
        self.puts: list[tuple[str, Put]] = []

    def submit_all(self, submissions: Sequence[tuple[EngineRequest, EventSink]]) -> None:
        """Keep where the tokens of requests go."""
        self.puts += [(request.id, sink.put) for request, sink in submissions]

    def pause(self, request_id: str) -> None:
        """Go on."""

    def resume(self, request_id: str) -> None:
        """Go on."""


class Times(Histogram):
    """A histogram that keeps all values.

    Attributes:
        values: in the order in which they came.
    """

    def __init__(self) -> None:
        super().__init__("times", "Seconds.", COMMIT_S)
        self.values: list[float] = []

    def observe(self, value: float, count: int = 1) -> None:
        self.values.append(value)


def head_of(number: int) -> Head:
    """Return the head of a stream as the journal has it."""
    return Head(
        f"chatcmpl-{number:032x}",
        b"",
        "/v1/chat/completions",
        b'{"messages":[]}',
        True,
        None,
        0.0,
        (1,),
        (2,),
        300.0,
        b"",
    )


def stream_of(engine: Teller, number: int) -> LiveStream:
    """Return a new stream of one choice."""
    params = admit([1], SamplingParams(max_tokens=CONTEXT // 2), CARD)
    head = head_of(number)
    return LiveStream(cast("EngineClient", engine), [EngineRequest(head.id, (1,), params, 0.0)], head.id)


async def tell(path: Path, num_streams: int, steps_per_s: float, seconds: float) -> Told:
    """Tell `num_streams` streams a token in each step, and record them in a new journal."""
    engine, store = Teller(), JournalStore(path)
    journal = Journaling(store)
    journal.start()
    for number in range(num_streams):
        stream = stream_of(engine, number)
        journal.begin(stream, head_of(number))
        stream.start()
    await journal.flush()
    await _steps(engine, 1, steps_per_s, WARM_UP_S)
    idle_s = await _idle_loop_s(engine, steps_per_s)
    journal.commit_s = times = Times()
    first = 1 + round(WARM_UP_S * steps_per_s)
    began, loop_s, thread_s = monotonic(), time.thread_time(), thread_cpu_s(JOURNAL_THREAD)
    wal_bytes, last = await _steps(engine, first, steps_per_s, seconds, partial(_num_bytes, Path(f"{path}-wal")))
    await journal.flush()
    told = Told(
        num_streams * (last - first),
        monotonic() - began,
        thread_cpu_s(JOURNAL_THREAD) - thread_s,
        time.thread_time() - loop_s - idle_s * (last - first),
        sorted(times.values),
        wal_bytes,
        store.num_bytes,
    )
    await journal.close()
    return told


async def _steps(
    engine: Teller, first: int, steps_per_s: float, seconds: float, log_bytes: Callable[[], int] = lambda: 0
) -> tuple[int, int]:
    """Put a token into every stream in each step; return the most bytes of the log, and the number behind the last."""
    due, num_steps, wal_bytes = monotonic(), round(seconds * steps_per_s), 0
    for number in range(first, first + num_steps):
        for request_id, put in engine.puts:
            put(TokenDelta(request_id, 0, number, TOKEN_IDS, TEXT), number)
        if not number % 20:
            wal_bytes = max(wal_bytes, log_bytes())
        due += 1 / steps_per_s
        await asyncio.sleep(max(0.0, due - monotonic()))
    return wal_bytes, first + num_steps


async def _idle_loop_s(engine: Teller, steps_per_s: float) -> float:
    """Return the seconds that the loop spends in a step whose tokens go nowhere."""
    idle = Teller()
    idle.puts = [(request_id, lambda delta, number: None) for request_id, _ in engine.puts]
    began = time.thread_time()
    _, behind = await _steps(idle, 1, steps_per_s, WARM_UP_S)
    return (time.thread_time() - began) / (behind - 1)


def _num_bytes(file: Path) -> int:
    return file.stat().st_size
