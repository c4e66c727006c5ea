"""Shared test doubles: an engine with exact tokens, scripted faults and steps that tests control.

A fake request's i-th token (from 1) is `crc32(prompt ids, i)`, so any test can say what the answer must be, in any
process. Nothing here sleeps.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from zlib import crc32

from app.config import Config
from app.errors import ErrorInfo
from app.messages import (
    Abort,
    EngineCommand,
    EngineEvent,
    EngineHealth,
    EngineRequest,
    EngineState,
    EngineStats,
    Finished,
    FinishReason,
    Logprob,
    ModelCard,
    Pause,
    RequestFailed,
    Resume,
    StepReport,
    Submit,
    Timings,
    TokenDelta,
    TokenLogprobs,
    Usage,
)
from app.params import SamplingParams
from app.streaming.bridge import AsyncEngine
from app.streaming.mailbox import Mailbox

WORDS = (
    " a",
    " be",
    "\n",
    " über",
    " 猫",
    " 🙂",
    '"',
    "\\",
    " data:",
    " event",
    "[DONE]",
    "\r",
    "\u2028",
    " <b>",
    ".",
    "!",
)
"""What fake tokens say: everything that has ever upset a framing. Token t says `WORDS[t % 16]`."""

CARD = ModelCard(
    name="fake", revision="0", max_model_len=2048, kv_capacity_tokens=65536, vocab_size=2**16, eos_token_ids=(2,)
)


class FakeClock:
    """A clock that stands still until it is told to move."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass."""
        self.now += seconds


def make_request(request_id: str = "r", *, max_tokens: int = 8, prompt: Sequence[int] = (1, 2, 3)) -> EngineRequest:
    """A plain request."""
    return EngineRequest(request_id, tuple(prompt), SamplingParams(max_tokens=max_tokens, seed=0), 0.0)


def token_of(prompt_token_ids: Sequence[int], i: int) -> int:
    """The id of the i-th token (from 1) of the fake answer to a prompt."""
    return crc32(repr((tuple(prompt_token_ids), i)).encode()) % CARD.vocab_size


def tokens_of(prompt_token_ids: Sequence[int], count: int) -> tuple[int, ...]:
    """The ids of the first `count` tokens of the fake answer."""
    return tuple(token_of(prompt_token_ids, i) for i in range(1, count + 1))


def text_of(prompt_token_ids: Sequence[int], count: int) -> str:
    """The text of the first `count` tokens of the fake answer."""
    return "".join(WORDS[token_id % len(WORDS)] for token_id in tokens_of(prompt_token_ids, count))


@dataclass
class Script:
    """What a fake engine does out of the ordinary.

    Attributes:
        answer: texts of the tokens of every answer, which then ends with `stop`; None = crc32 tokens, `length`.
        fail_after: every request fails once it has so many tokens.
        crash_after: the whole engine fails once any request has so many tokens.
        error: what such a failure says.
        max_num_seqs: how many run at once; the others wait.
    """

    answer: Sequence[str] | None = None
    fail_after: int | None = None
    crash_after: int | None = None
    error: ErrorInfo = field(default_factory=lambda: ErrorInfo("engine_error", "The step raised an exception."))
    max_num_seqs: int = 64


@dataclass
class _Work:
    request: EngineRequest
    num_tokens: int = 0
    is_paused: bool = False


class FakePort:
    """An `EnginePort`: one token per running request and step; stepped by hand or by a thread of its own.

    Attributes:
        state: what `health` says; tests may set it.
        posted: every command ever posted.
        steps: reports delivered so far.
    """

    def __init__(self, script: Script | None = None, *, state: EngineState = EngineState.READY) -> None:
        self.script = script or Script()
        self.state = state
        self.posted: list[EngineCommand] = []
        self.steps = 0
        self._inbox: deque[EngineCommand] = deque()
        self._works: dict[str, _Work] = {}
        self._deliver: Callable[[StepReport], None] | None = None
        self._wake = threading.Event()
        self._is_stopped = False
        self._thread: threading.Thread | None = None

    def start(self, deliver: Callable[[StepReport], None]) -> None:
        """Remember where reports go."""
        self._deliver = deliver

    def post(self, command: EngineCommand) -> None:
        """Put a command into the inbox."""
        self.posted.append(command)
        self._inbox.append(command)
        self._wake.set()

    def health(self) -> EngineHealth:
        """Return `state`."""
        progress = 0.5 if self.state is EngineState.LOADING else 1.0
        message = "the fake has crashed" if self.state is EngineState.FAILED else ""
        return EngineHealth(self.state, progress, self.steps, 0.0, message)

    def card(self) -> ModelCard | None:
        """Return the card once loading is over."""
        return CARD if self.state in (EngineState.READY, EngineState.DRAINING) else None

    def stop(self) -> None:
        """End the thread, if there is one, after its current step."""
        self._is_stopped = True
        self._wake.set()

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread, if there is one."""
        if self._thread is not None:
            self._thread.join(timeout_s)
            return not self._thread.is_alive()
        return True

    @property
    def has_work(self) -> bool:
        """Whether a step would do something."""
        return bool(self._inbox) or any(not work.is_paused for work in self._works.values())

    @property
    def num_open(self) -> int:
        """How many requests the engine holds."""
        return len(self._works)

    def run_thread(self) -> None:
        """Step on a real thread whenever there is work, until `stop`; commands posted before it are carried out."""

        def run() -> None:
            while not self._is_stopped:
                if self.has_work:
                    self.step()
                else:
                    self._wake.wait(0.05)
                    self._wake.clear()
            if self._inbox:
                self.step()

        self._thread = threading.Thread(target=run, name="fake-engine")
        self._thread.start()

    def step(self, count: int = 1) -> None:
        """Do `count` steps: drain the inbox, then one token per running request; each step delivers one report."""
        for _ in range(count):
            events: list[EngineEvent] = []
            while self._inbox:
                self._obey(self._inbox.popleft(), events)
            running = self._running()
            new = [len(work.request.prompt_token_ids) for work in running if not work.num_tokens]
            for work in running:
                self._advance(work, events)
            self.steps += 1
            assert self._deliver is not None, "start() first"
            self._deliver(StepReport(tuple(events), self._stats(), 0.001, sum(new), len(running) - len(new)))

    def _obey(self, command: EngineCommand, events: list[EngineEvent]) -> None:
        if isinstance(command, Submit):
            self._works[command.request.id] = _Work(command.request)
        elif isinstance(command, Abort):
            if work := self._works.get(command.request_id):
                self._finish(work, FinishReason.CANCELLED, events)
        elif isinstance(command, (Pause, Resume)) and (work := self._works.get(command.request_id)):
            work.is_paused = isinstance(command, Pause)

    def _running(self) -> list[_Work]:
        ready = [work for work in self._works.values() if not work.is_paused]
        return ready[: self.script.max_num_seqs]

    def _advance(self, work: _Work, events: list[EngineEvent]) -> None:
        script, request = self.script, work.request
        if work.num_tokens == script.crash_after:
            self.state = EngineState.FAILED
            return
        if work.num_tokens == script.fail_after:
            events.append(RequestFailed(request.id, script.error))
            del self._works[request.id]
            return
        work.num_tokens += 1
        token_id = token_of(request.prompt_token_ids, work.num_tokens)
        text = WORDS[token_id % len(WORDS)] if script.answer is None else script.answer[work.num_tokens - 1]
        events.append(
            TokenDelta(request.id, 0, work.num_tokens, (token_id,), text, _logprobs(request.params, token_id, text))
        )
        if script.answer is not None and work.num_tokens == len(script.answer):
            self._finish(work, FinishReason.STOP, events)
        elif work.num_tokens == request.params.max_tokens:
            self._finish(work, FinishReason.LENGTH, events)

    def _finish(self, work: _Work, reason: FinishReason, events: list[EngineEvent]) -> None:
        usage = Usage(len(work.request.prompt_token_ids), work.num_tokens)
        timings = Timings(0.001, 0.002, 0.002 + 0.001 * work.num_tokens)
        events.append(Finished(work.request.id, 0, reason, usage, timings))
        del self._works[work.request.id]

    def _stats(self) -> EngineStats:
        num_running = len(self._running())
        num_paused = sum(work.is_paused for work in self._works.values())
        num_waiting = len(self._works) - num_running - num_paused
        return EngineStats(num_running, num_waiting, num_paused, 100, 100, 0, self.steps)


def _logprobs(params: SamplingParams, token_id: int, text: str) -> tuple[TokenLogprobs, ...] | None:
    if params.logprobs is None:
        return None
    chosen = Logprob(token_id, -0.5, 1, text.encode())
    others = tuple(Logprob(rank, -float(rank), rank, b"\xff") for rank in range(2, params.logprobs + 1))
    return (TokenLogprobs(chosen, (chosen, *others)[: params.logprobs]),)


class FakeEngine(AsyncEngine):
    """An `EngineClient` that answers by itself, one step per turn of the loop, unless it is held.

    Starts itself with the first request, so it may be made outside of a loop. Scripted by `Script` fields; further:

    Attributes:
        port: the `FakePort` behind it (`port.state`, `port.posted`, `port.script`).
        requests: every request it took.
        aborted: ids of the requests that were aborted, once per abort command.
    """

    def __init__(self, script: Script | None = None, config: Config | None = None, *, held: bool = False) -> None:
        self.port = FakePort(script)
        self.requests: list[EngineRequest] = []
        self._is_held = held
        self._is_stepping = False
        super().__init__(self.port, config or Config())

    @property
    def aborted(self) -> list[str]:
        """Ids of aborted requests, in order."""
        return [command.request_id for command in self.port.posted if isinstance(command, Abort)]

    def start(self) -> None:
        """Bind to the running loop; calling it again changes nothing."""
        if self._loop is None:
            super().start()

    def submit(self, request: EngineRequest) -> Mailbox:
        """Take a request and begin to answer it."""
        self.start()
        mailbox = super().submit(request)
        self.requests.append(request)
        self._schedule()
        return mailbox

    def abort(self, request_id: str) -> None:
        """Drop a request; a held engine drops it, too."""
        super().abort(request_id)
        if self._is_held:
            self.step()
        self._schedule()

    def hold(self) -> None:
        """Generate nothing until `release` or `step`."""
        self._is_held = True

    def release(self) -> None:
        """Answer by itself again."""
        self._is_held = False
        self._schedule()

    def step(self, count: int = 1) -> None:
        """Do steps at once; readers see them after the loop's next turn."""
        self.start()
        self.port.step(count)

    def resume(self, request_id: str) -> None:
        """Generate again for a paused request."""
        super().resume(request_id)
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_stepping and not self._is_held and self._loop is not None:
            self._is_stepping = True
            self._loop.call_soon(self._step_by_itself)

    def _step_by_itself(self) -> None:
        self._is_stepping = False
        if not self._is_held and self.port.has_work and self.port.state is EngineState.READY:
            self.port.step()
            self._schedule()


async def turn_loop(times: int = 5) -> None:
    """Let everything that is ready on the loop run."""
    for _ in range(times):
        await asyncio.sleep(0)
