"""A fake engine thread: exact tokens, scripted faults, and steps that tests do by hand.

The i-th token (from 1) of a fake request's choice is `crc32(prompt ids, choice, i)`, so any test can say what the
output must be, in any process. Nothing here sleeps.
"""

from __future__ import annotations

import threading
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from zlib import crc32

from app.contract.engine_counts import BlockCounts, PromptCounts, QueueCounts
from app.contract.engine_picture import EnginePicture
from app.contract.engine_status import EngineHealth, EngineState, EngineStats, ModelInfo, StepReport
from app.contract.errors import ErrorInfo
from app.contract.events import (
    ChoiceEnd,
    Embedded,
    EngineEvent,
    Finished,
    FinishReason,
    PromptScored,
    RequestFailed,
    Timings,
    TokenDelta,
    Usage,
)
from app.contract.packed_logprobs import Logprobs, TokenLogprobs
from app.contract.requests import (
    Abort,
    EngineCommand,
    EngineRequest,
    Pause,
    Pooling,
    PoolingKind,
    Resume,
    Submit,
)
from app.contract.sampling_params import SamplingParams

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
"""Texts of fake tokens, among them all that can break a framing. The text of token t is `WORDS[t % 16]`."""

MODEL_INFO = ModelInfo(
    name="fake",
    hidden_size=8,
    revision="0",
    max_model_len=2048,
    kv_capacity_tokens=65536,
    vocab_size=2**16,
    eos_token_ids=(2,),
)


LOGPROBS_VOCAB = 1024
"""Log-probabilities name token ids modulo this, which the vocabulary of `guide` contains."""


def token_of(prompt_token_ids: Sequence[int], i: int, choice: int = 0) -> int:
    """The id of the i-th token (from 1) of a choice of the fake output for a prompt."""
    return crc32(repr((tuple(prompt_token_ids), choice, i)).encode()) % MODEL_INFO.vocab_size


def tokens_of(prompt_token_ids: Sequence[int], count: int, choice: int = 0) -> tuple[int, ...]:
    """The ids of the first `count` tokens of a choice of the fake output."""
    return tuple(token_of(prompt_token_ids, i, choice) for i in range(1, count + 1))


def text_of(prompt_token_ids: Sequence[int], count: int, choice: int = 0) -> str:
    """The text of the first `count` tokens of a choice of the fake output."""
    return "".join(WORDS[token_id % len(WORDS)] for token_id in tokens_of(prompt_token_ids, count, choice))


def vector_of(prompt_token_ids: Sequence[int], pooling: Pooling) -> bytes:
    """The fake vector of a prompt: its first ids, and the kind and the options of the pooling."""
    numbers = [*prompt_token_ids[:5], *[0] * 5][:5]
    numbers += [len(prompt_token_ids), list(PoolingKind).index(pooling.kind), pooling.is_normalized]
    return array("f", numbers[: pooling.num_dimensions]).tobytes()


def scores_of(prompt_token_ids: Sequence[int], num_top: int) -> Logprobs:
    """The fake log-probabilities of a prompt's tokens, from the second on: lower for each further one."""
    ids = [token_id % LOGPROBS_VOCAB for token_id in prompt_token_ids[1:]]
    best = tuple(range(num_top))
    values = tuple(-0.25 - rank for rank in best)
    entries = [TokenLogprobs(token_id, -1.0 - i, num_top + 1, best, values) for i, token_id in enumerate(ids)]
    return Logprobs.of(entries, num_top)


@dataclass
class Script:
    """Scripted outputs and faults of a fake engine.

    Attributes:
        answer: texts of the tokens of every choice, which then ends with `stop`; None = crc32 tokens, `length`.
        others: the same for each choice after the first; choices beyond the list have `answer`.
        fail_after: every request fails when it has this number of tokens.
        crash_after: the engine fails when any request has this number of tokens.
        error: the error of such a failure.
        max_num_seqs: how many sequences run at once; requests that do not fit wait.
        usage: the fields of every request's usage besides the numbers of tokens.
        brownout_level: the level in every report.
    """

    answer: Sequence[str] | None = None
    others: Sequence[Sequence[str]] = ()
    fail_after: int | None = None
    crash_after: int | None = None
    error: ErrorInfo = field(default_factory=lambda: ErrorInfo("engine_error", "The step raised an exception."))
    max_num_seqs: int = 64
    usage: Usage = field(default_factory=lambda: Usage(0, 0))
    brownout_level: int = 0

    def answer_of(self, choice: int) -> Sequence[str] | None:
        """The texts of a choice's tokens, if they are scripted."""
        return self.others[choice - 1] if 1 <= choice <= len(self.others) else self.answer


@dataclass
class _Choice:
    number: int
    num_tokens: int = 0
    unreported: list[TokenDelta] = field(default_factory=list)
    reason: FinishReason | None = None


class _Work:
    """An open request; a ranked one reports nothing before all its choices have ended."""

    def __init__(self, request: EngineRequest) -> None:
        self.request = request
        self.choices = [_Choice(number) for number in range(request.params.n)]
        self.num_tokens = 0  # of its longest choice
        self.is_paused = False

    @property
    def open(self) -> list[_Choice]:
        return [choice for choice in self.choices if choice.reason is None]


class FakePort:
    """An `EnginePort`: one token per running request and step; stepped by hand or by a thread of its own.

    Attributes:
        state: the state in `health`; tests may set it.
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
        self._num_prompt_tokens = 0
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

    def model_info(self) -> ModelInfo | None:
        """Return the model that is known once loading is over."""
        return MODEL_INFO if self.state in (EngineState.READY, EngineState.DRAINING) else None

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
        """The number of open requests."""
        return len(self._works)

    @property
    def num_paused(self) -> int:
        """The number of open requests that are paused."""
        return sum(work.is_paused for work in self._works.values())

    def is_paused(self, request_id: str) -> bool:
        """Whether a request is open and paused."""
        work = self._works.get(request_id)
        return work is not None and work.is_paused

    def num_tokens(self, request_id: str) -> int:
        """How many tokens an open request has, in its longest choice."""
        return self._works[request_id].num_tokens

    def run_thread(self) -> None:
        """Step on a real thread while there is work, until `stop`; commands posted before `stop` are executed."""

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
                self._execute(self._inbox.popleft(), events)
            running = self._running()
            new = [len(work.request.prompt_token_ids) for work in running if not work.num_tokens]
            for work in running:
                self._advance(work, events)
            self._num_prompt_tokens += sum(new)
            self.steps += 1
            assert self._deliver is not None, "start() first"
            self._deliver(StepReport(tuple(events), self._stats(), 0.001, sum(new), len(running) - len(new)))

    def fail(self, request_id: str) -> None:
        """Let one open request fail; no other one advances."""
        del self._works[request_id]
        assert self._deliver is not None, "start() first"
        self._deliver(StepReport((RequestFailed(request_id, self.script.error),), self._stats()))

    def show(self, picture: EnginePicture) -> None:
        """Deliver a report with a picture; no request advances."""
        assert self._deliver is not None, "start() first"
        self._deliver(StepReport((), self._stats(), picture=picture))

    def _execute(self, command: EngineCommand, events: list[EngineEvent]) -> None:
        if isinstance(command, Submit):
            self._works[command.request.id] = _Work(command.request)
        elif isinstance(command, Abort):
            if work := self._works.get(command.request_id):
                self._cancel(work, events)
        elif isinstance(command, (Pause, Resume)) and (work := self._works.get(command.request_id)):
            work.is_paused = isinstance(command, Pause)

    def _running(self) -> list[_Work]:
        running, num_seats = [], self.script.max_num_seqs
        for work in self._works.values():
            if not work.is_paused and len(work.open) <= num_seats:
                running.append(work)
                num_seats -= len(work.open)
        return running

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
        if request.pooling is not None:
            prompt = request.prompt_token_ids
            events.append(Embedded(request.id, vector_of(prompt, request.pooling), len(prompt)))
            del self._works[request.id]
            return
        if work.num_tokens == 1 and request.params.prompt_logprobs is not None:
            events.append(PromptScored(request.id, scores_of(request.prompt_token_ids, request.params.prompt_logprobs)))
        extended = work.open
        for choice in extended:
            self._extend(request, choice)
        if not request.params.is_ranked:
            self._report(request, extended, events)
        elif not work.open:
            self._report(request, work.choices, events)
        if not work.open:
            del self._works[request.id]

    def _cancel(self, work: _Work, events: list[EngineEvent]) -> None:
        cancelled = work.open
        for choice in cancelled:
            choice.reason = FinishReason.CANCELLED
        self._report(work.request, work.choices if work.request.params.is_ranked else cancelled, events)
        del self._works[work.request.id]

    def _extend(self, request: EngineRequest, choice: _Choice) -> None:
        """Give an open choice its next token."""
        if request.is_prompt_only:
            choice.reason = FinishReason.LENGTH
            return
        number = choice.num_tokens = choice.num_tokens + 1
        answer = self.script.answer_of(choice.number)
        token_id = token_of(request.prompt_token_ids, number, choice.number)
        text = WORDS[token_id % len(WORDS)] if answer is None else answer[number - 1]
        logprobs = _logprobs(request.params, token_id)
        choice.unreported.append(TokenDelta(request.id, choice.number, number, (token_id,), text, logprobs))
        if answer is not None and number == len(answer):
            choice.reason = FinishReason.STOP
        elif number == request.params.max_tokens:
            choice.reason = FinishReason.LENGTH

    def _report(self, request: EngineRequest, choices: Sequence[_Choice], events: list[EngineEvent]) -> None:
        """Report new tokens of choices, and the ends of those that have ended."""
        for choice in choices:
            events += choice.unreported
            choice.unreported = []
            if choice.reason is not None:
                num_prompt, num_tokens = len(request.prompt_token_ids), choice.num_tokens
                usage = replace(self.script.usage, prompt_tokens=num_prompt, completion_tokens=num_tokens)
                timings = Timings(0.001, 0.002, 0.002 + 0.001 * num_tokens)
                events.append(Finished(request.id, choice.number, ChoiceEnd(choice.reason), usage, timings))

    def _stats(self) -> EngineStats:
        num_running = len(self._running())
        num_paused = self.num_paused
        num_waiting = len(self._works) - num_running - num_paused
        return EngineStats(
            self.steps,
            self.script.brownout_level,
            queues=QueueCounts(num_running, num_waiting, num_paused),
            blocks=BlockCounts(100, 100),
            prompts=PromptCounts(self._num_prompt_tokens),
        )


def _logprobs(params: SamplingParams, token_id: int) -> Logprobs | None:
    """The log-probabilities of a token id that real vocabularies have, and of the ids before it."""
    if params.logprobs is None:
        return None
    token_id %= LOGPROBS_VOCAB
    best = tuple((token_id - rank) % LOGPROBS_VOCAB for rank in range(params.logprobs))
    values = tuple(-0.5 - rank for rank in range(params.logprobs))
    return Logprobs.of([TokenLogprobs(token_id, -0.5, 1, best, values)], params.logprobs)
