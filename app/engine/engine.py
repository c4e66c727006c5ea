"""The engine: requests in, events out, one step at a time.

`schedule` decides, `execute` computes, `output` speaks; this file is the loop between them. It makes no threads: the
engine thread and the offline `LLM` both drive it.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import NamedTuple

from app.clock import Clock, monotonic
from app.engine.execute.model_runner import InFlight, ModelRunner
from app.engine.output import OutputProcessor
from app.engine.schedule.plan import StepPlan
from app.engine.schedule.scheduler import Scheduler
from app.engine.schedule.sequence import Sequence
from app.errors import NOT_OURS, EngineFailed, InvalidValue, QuireError
from app.messages import (
    EngineEvent,
    EngineRequest,
    EngineStats,
    FinishReason,
    ModelCard,
    RequestFailed,
)

_log = logging.getLogger("quire.engine")


class StepCounts(NamedTuple):
    """Tokens that the last step computed: of prompts, and of answers."""

    prefill: int = 0
    decode: int = 0


class Engine:
    """Continuous batching over a paged KV cache. One thread at a time; `now` is monotonic time in seconds."""

    def __init__(
        self,
        card: ModelCard,
        scheduler: Scheduler,
        runner: ModelRunner,
        output: OutputProcessor,
        clock: Clock = monotonic,
    ) -> None:
        self.card = card
        self.scheduler = scheduler
        self.runner = runner
        self.output = output
        self.clock = clock
        self.in_flight: deque[InFlight] = deque()
        self.num_steps = 0
        self.last_counts = StepCounts()

    def add(self, request: EngineRequest) -> list[EngineEvent]:
        """Put a request in line; one that can never run comes back as `RequestFailed`."""
        if self.scheduler.is_open(request.id):
            _log.error("request %s was submitted twice; the second one is ignored", request.id)
            return []
        try:
            self._check(request)
            sequence = self.scheduler.add(request)
        except QuireError as error:
            return [RequestFailed(request.id, error.info())]
        try:
            self.output.add(sequence)
        except NOT_OURS:
            raise
        except BaseException as error:
            return self._fail([sequence], error)
        return []

    def abort(self, request_id: str, now: float) -> list[EngineEvent]:
        """Drop a request, whatever it is doing, and free what it holds; unknown and finished ids give no events."""
        sequence = self.scheduler.abort(request_id)
        if sequence is None:
            return []
        try:
            return self.output.finish(sequence, FinishReason.CANCELLED, now)
        except NOT_OURS:
            raise
        except BaseException as error:
            return self._fail([sequence], error)

    def pause(self, request_id: str) -> None:
        """Stop generating for a request; it keeps its blocks while nobody needs them."""
        self.scheduler.pause(request_id)

    def resume(self, request_id: str) -> None:
        """Generate again for a paused request."""
        self.scheduler.resume(request_id)

    def step(self, now: float) -> list[EngineEvent]:
        """Launch the next step, then finish all but the newest in flight (`run_ahead` of them)."""
        plan = self.scheduler.schedule(now)
        self.last_counts = StepCounts()
        if plan is None:
            return self._finish_all_but(0)
        try:
            self.in_flight.append(self.runner.launch(plan))
        except Exception as error:
            return self._finish_all_but(0) + self._fail(self.scheduler.abandon(plan), error)
        except BaseException:  # Ctrl-C of an offline caller, who may go on with other requests
            self._finish_all_but(0)
            self._drop(self.scheduler.abandon(plan))
            raise
        self._count(plan)
        return self._finish_all_but(self.scheduler.limits.run_ahead)

    @property
    def has_ready_work(self) -> bool:
        """Whether another step would do something."""
        return bool(self.in_flight) or self.scheduler.has_ready_work

    def stats(self) -> EngineStats:
        """Return the counts as they stand."""
        scheduler = self.scheduler
        return EngineStats(
            num_running=scheduler.num_running,
            num_waiting=scheduler.num_waiting,
            num_paused=scheduler.num_paused,
            num_free_blocks=scheduler.num_free_blocks,
            num_blocks=scheduler.limits.num_blocks,
            num_preemptions=scheduler.num_preemptions,
            step=self.num_steps,
        )

    def _finish_all_but(self, num_newest: int) -> list[EngineEvent]:
        events: list[EngineEvent] = []
        while len(self.in_flight) > num_newest:
            events += self._finish(self.in_flight.popleft())
        return events

    def _finish(self, in_flight: InFlight) -> list[EngineEvent]:
        """Take in a computed step: tokens to their sequences, text to their readers, ends to the scheduler."""
        try:
            result = in_flight.wait()
        except Exception as error:
            return self._fail(self.scheduler.abandon(in_flight.plan), error)
        now = self.clock()
        outputs = self.output.process(self.scheduler.update(result, now), now)
        for sequence, _ in outputs.ended:
            self.scheduler.finish(sequence)
        for sequence, cause in outputs.failed:
            outputs.events.extend(self._fail([sequence], cause))
        return outputs.events

    def _check(self, request: EngineRequest) -> None:
        """Refuse what would hurt others: the engine may have other callers than those that admit requests."""
        if request.params.max_tokens is None or request.params.seed is None:
            raise InvalidValue("The parameters are not resolved; pass them through `admission.admit`.", param="params")
        ids = request.prompt_token_ids
        if ids and not (min(ids) >= 0 and max(ids) < self.card.vocab_size):
            raise InvalidValue(f"Prompt token ids must be between 0 and {self.card.vocab_size - 1}.", param="prompt")

    def _fail(self, sequences: list[Sequence], error: BaseException) -> list[EngineEvent]:
        """End the requests whose step raised; everybody else goes on."""
        _log.error("the engine failed on %d requests: %s", len(sequences), error, exc_info=error)
        self._drop(sequences)
        failure = EngineFailed("The engine failed while it computed this answer; try again.").info()
        return [RequestFailed(sequence.request.id, failure) for sequence in sequences]

    def _drop(self, sequences: list[Sequence]) -> None:
        """End sequences without a word to their readers."""
        for sequence in sequences:
            self.scheduler.finish(sequence)
            self.output.drop(sequence)

    def _count(self, plan: StepPlan) -> None:
        self.num_steps += 1
        self.last_counts = StepCounts(plan.num_prompt_tokens, plan.num_tokens - plan.num_prompt_tokens)
