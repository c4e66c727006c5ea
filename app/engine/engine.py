"""The engine: commands in, events out, one step at a time.

`schedule` plans a step, `execute` computes it, `output_processor` turns its tokens into events; this file is the loop
between them. The engine starts no threads: the engine thread, the offline `LLM` and prefix pinning call `turn`.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable
from itertools import count
from math import inf

from app.contract.admission import check_told
from app.contract.engine_counts import MemoryCounts, SpeculationCounts
from app.contract.engine_picture import Watch
from app.contract.engine_status import EngineStats, ModelInfo, StepReport
from app.contract.errors import EngineFailed, InvalidValue, QuireError
from app.contract.events import EngineEvent, FinishReason, RequestFailed
from app.contract.requests import Abort, EngineCommand, EngineRequest, Pause, Resume, Submit
from app.engine.brownout import Brownout
from app.engine.execute.interfaces import InFlight, Runner
from app.engine.execute.masks import NOT_COMPILED, NOTHING_LEFT
from app.engine.output_processor import OutputProcessor
from app.engine.phases import Phases
from app.engine.recovery import Recovery, check_device
from app.engine.schedule.group import SequenceGroup
from app.engine.schedule.scheduler import Scheduler
from app.engine.schedule.step_plan import StepPlan, StepResult
from app.engine.view import View
from app.observe.shown_id import shown_id
from app.runtime.clock import Clock, monotonic
from app.text.grammar.cache import GrammarCache

_log = logging.getLogger("quire.engine")


NAN_LOGITS = (
    "The model computed no probabilities for the next token: its logits are no numbers (NaN). Its weights may be "
    "damaged, or numbers beyond the range of float16; with --dtype bfloat16 or float32 they are in range."
)
# Seconds between two updates of the brown-out, and between two counts of the empty slots of blocks.
UPDATE_S = 0.25


class Engine:
    """Continuous batching over a paged KV cache. One thread at a time; `now` is monotonic time in seconds.

    `brownout` limits the work under pressure, `phases` report the phases of requests; offline, where no client waits
    for single answers, both are None. `view` makes pictures for those who watch; None while nobody does.
    """

    def __init__(
        self,
        model_info: ModelInfo,
        scheduler: Scheduler,
        runner: Runner,
        output: OutputProcessor,
        grammars: GrammarCache,
        clock: Clock = monotonic,
        brownout: Brownout | None = None,
        phases: Phases | None = None,
    ) -> None:
        self.model_info = model_info
        self.scheduler = scheduler
        self.runner = runner
        self.output = output
        self.grammars = grammars
        self.clock = clock
        self.recovery = Recovery(scheduler)
        self.brownout = brownout
        self.phases = phases
        self.view: View | None = None
        self._picture_numbers = count(1)
        self.memory = MemoryCounts()  # set by `build_engine`
        self._began = inf  # when the first step was
        self._next_overload_update = 0.0
        self._next_slot_count = 0.0
        self.in_flight: deque[InFlight] = deque()
        self.num_steps = 0
        self.num_prefill_tokens = 0  # computed so far: of prompts, and of answers without draft tokens
        self.num_decode_tokens = 0
        self.num_nan_requests = 0
        self._mask_s: list[float] = []  # of the steps of the present turn that had masks

    def turn(self, commands: Iterable[EngineCommand], now: float) -> StepReport:
        """Carry out `commands`, then compute one step if one is due.

        Raises:
            EngineFailed: steps keep failing without a culprit.
        """
        num_prefill, num_decode = self.num_prefill_tokens, self.num_decode_tokens
        events = [event for command in commands for event in self._carry_out(command, now)]
        if self.next_wakeup(now) <= now:
            events += self.step(now)
        if self.phases is not None:
            events += self.phases.take_changes()
        if now >= self._next_slot_count or not self.has_ready_work:  # in every step it would take time
            self._next_slot_count = now + UPDATE_S
            self.scheduler.count_unfilled()
        num_prefill, num_decode = self.num_prefill_tokens - num_prefill, self.num_decode_tokens - num_decode
        mask_s, self._mask_s = tuple(self._mask_s), []
        end = self.clock()
        picture = None if self.view is None else self.view.take_picture(end)
        return StepReport(tuple(events), self.stats(), end - now, num_prefill, num_decode, mask_s, picture)

    def next_wakeup(self, now: float) -> float:
        """Return when the next turn is due: `now` where a step can run, `inf` where only a command brings work.

        Otherwise a turn is due at the next deadline of a request, when the brown-out may end, or for a picture.
        """
        if self.has_ready_work:
            return now
        deadline = self.scheduler.deadlines.next_time
        is_limited = self.brownout is not None and self.brownout.level > 0
        return min(
            inf if deadline is None else deadline,
            self._next_overload_update if is_limited else inf,
            inf if self.view is None else self.view.due,
        )

    def work_idly(self) -> bool:
        """Do a piece of work that makes later steps faster, while no step can run; False if none is left.

        Raises:
            EngineFailed: the device is broken.
        """
        if self.has_ready_work or not self.runner.has_idle_work:
            return False
        try:
            self.runner.work_idly()
        except Exception as error:
            check_device(error)
            raise
        return True

    def add(self, request: EngineRequest) -> list[EngineEvent]:
        """Queue a request; one that can never run ends with `RequestFailed`."""
        if self.scheduler.is_open(request.id):
            _log.error("request %s was submitted twice; ignoring the second one", shown_id(request.id))
            return []
        try:
            self._check(request)
            group = self.scheduler.add(request)
        except QuireError as error:
            return [RequestFailed(request.id, error.info())]
        return self.output.add(group)

    def abort(self, request_id: str, now: float) -> list[EngineEvent]:
        """Abort a request in any state and free its rows and blocks; unknown and finished ids give no events."""
        group = self.scheduler.abort(request_id)
        return [] if group is None else self.output.cancel(group, now)

    def pause(self, request_id: str) -> None:
        """Stop generating for a request, which keeps its blocks until others need them."""
        self.scheduler.pause(request_id)

    def resume(self, request_id: str) -> None:
        """Generate again for a paused request."""
        self.scheduler.resume(request_id)

    def step(self, now: float) -> list[EngineEvent]:
        """Launch the next step, then finish all but the newest in flight, as many as may run ahead.

        Raises:
            EngineFailed: steps keep failing without a culprit.
        """
        events = self._expire_deadlines(now) + self._end_late(now)
        self._update_overload(now)
        self.recovery.choose()
        plan = self.scheduler.schedule(now)
        if plan is None:
            self.runner.masks.wait()
            return events + self._finish_all_but(0)
        try:
            self.in_flight.append(self.runner.launch(plan))
        except Exception as error:
            return events + self._finish_all_but(0) + self._recover(plan, error)
        except BaseException:  # Ctrl-C of an offline caller, which may run other requests afterwards
            self._finish_all_but(0)
            self.recovery.abandon(plan)
            raise
        self._count(plan)
        return events + self._finish_all_but(self.in_flight[-1].run_ahead)

    @property
    def has_ready_work(self) -> bool:
        """Whether there is anything for another step to do."""
        return bool(self.in_flight) or self.scheduler.queues.has_ready

    def stats(self) -> EngineStats:
        """Return the present counts."""
        scheduler, speculation = self.scheduler, self.scheduler.speculation
        return EngineStats(
            step=self.num_steps,
            brownout_level=self.brownout.level if self.brownout is not None else 0,
            num_nan_requests=self.num_nan_requests,
            queues=scheduler.counts,
            blocks=scheduler.tables.counts,
            starts=scheduler.planner.starts.counts.copy(),
            prompts=self.output.counts.copy(),
            preemption=scheduler.preemption.counts.copy(),
            budget=scheduler.budget.counts.copy(),
            lengths=scheduler.length_accuracy,
            speculation=SpeculationCounts() if speculation is None else speculation.counts.copy(),
            graphs=self.runner.counts.copy(),
            recovery=self.recovery.counts.copy(),
            memory=self.memory,
        )

    def _finish_all_but(self, num_newest: int) -> list[EngineEvent]:
        events: list[EngineEvent] = []
        while len(self.in_flight) > num_newest:
            events += self._finish(self.in_flight.popleft())
        return events

    def _finish(self, in_flight: InFlight) -> list[EngineEvent]:
        """Process a computed step: tokens to their sequences, text to their readers, ends to the scheduler."""
        try:
            result = in_flight.wait()
        except Exception as error:
            return self._recover(in_flight.plan, error)
        now = self.clock()
        if result.mask_s is not None:
            self._mask_s.append(result.mask_s)
        # Before the update: what was computed for them must not get into the prefix cache.
        failed = self._fail_without_token(result) if result.num_without_token else []
        progress = self.scheduler.update(result, now)
        self.recovery.take_progress(progress)
        if self.view is not None:
            self.view.take_step(in_flight.plan, result, progress, now)
        return failed + self.output.process(progress, now) + self._end_late(now)

    def _end_late(self, now: float) -> list[EngineEvent]:
        """End the answers whose ends were not known with their last tokens.

        The step of these tokens may have failed afterwards; then the sequence does not have them.
        """
        events: list[EngineEvent] = []
        for end in self.runner.masks.take_ends():
            sequence = self.scheduler.open_sequence(end.sequence_id)
            if sequence is not None and len(sequence.output_token_ids) == end.num_tokens:
                reason = FinishReason.STOP if end.is_complete else FinishReason.LENGTH
                events += self.output.end(sequence, reason, now)
        return events

    def _fail_without_token(self, result: StepResult) -> list[EngineEvent]:
        """End the requests without a next token: their grammar leaves none, or their logits are no numbers."""
        events: list[EngineEvent] = []
        for group in self.scheduler.groups_without_token(result):
            reasons = [result.failures[each] for each in group.sequence_ids if each in result.failures]
            if reasons:
                events.append(self._fail_by_grammar(group, reasons[0]))
            else:
                self.num_nan_requests += 1
                events.append(self.output.fail(group, EngineFailed(NAN_LOGITS)))
        return events

    def _fail_by_grammar(self, group: SequenceGroup, reason: str) -> EngineEvent:
        """End a request whose grammar cannot go on: the client's mistake, except where the grammar is gone."""
        if reason == NOT_COMPILED:
            return self.output.fail(group, EngineFailed(f"{reason}; try again."))
        self.grammars.count_failure("no_token" if reason == NOTHING_LEFT else "limit")
        param = group.request.grammar.param if group.request.grammar is not None else None
        why = f"{reason[:1].lower()}{reason[1:]}"
        return self.output.reject(
            group,
            InvalidValue(
                f"The answer cannot go on because of {param or 'its grammar'}: {why}. Send a simpler one.", param=param
            ),
        )

    def _recover(self, plan: StepPlan, error: Exception) -> list[EngineEvent]:
        """End the requests that made a step fail."""
        culprits = self.recovery.recover(plan, error, self.in_flight, self.runner, self.clock)
        return [self.output.fail(group, error) for group in culprits]

    def _carry_out(self, command: EngineCommand, now: float) -> list[EngineEvent]:
        match command:
            case Submit(request):
                return self.add(request)
            case Abort(request_id):
                return self.abort(request_id, now)
            case Pause(request_id):
                self.pause(request_id)
            case Resume(request_id):
                self.resume(request_id)
            case Watch(on):
                self._watch(on=on)
        return []

    def _watch(self, *, on: bool) -> None:
        """Begin or end to make pictures. Idempotent."""
        if on and self.view is None:
            self.view = View(self.scheduler, self._picture_numbers)
        elif not on and self.view is not None:
            self.view.close()
            self.view = None

    def _expire_deadlines(self, now: float) -> list[EngineEvent]:
        """End the requests whose deadline has passed."""
        events: list[EngineEvent] = []
        for request_id, error in self.scheduler.deadlines.expired(now):
            group = self.scheduler.abort(request_id)
            if group is not None:
                self.output.drop(group)
                events.append(RequestFailed(request_id, error.info()))
        return events

    def _update_overload(self, now: float) -> None:
        """Update the brown-out level, at most once per interval."""
        if self.brownout is None or now < self._next_overload_update:
            return
        self._began = min(self._began, now)
        self._next_overload_update = now + UPDATE_S
        scheduler, pool = self.scheduler, self.scheduler.tables.pool
        waiting = scheduler.queues.waiting
        # The next request, not the one that waits longest: a policy may let some wait on purpose.
        # What came to an earlier process has not waited for this engine while there was none.
        wait_s = now - max(waiting[0].request.arrival_time, self._began) if waiting else 0.0
        # A brown-out would not make one long prompt any shorter.
        num_waiting = 0 if waiting and scheduler.preemption.waits_for_one_prompt(waiting[0]) else len(waiting)
        if self.brownout.update(now, num_waiting, wait_s, 1 - pool.num_free / pool.num_blocks):
            scheduler.budget.scale = self.brownout.chunk_scale
            _log.log(*self.brownout.describe_change(wait_s))

    def _check(self, request: EngineRequest) -> None:
        """Reject requests that would harm others: not every caller of the engine uses `admission`."""
        if request.params.max_tokens is None or request.params.seed is None:
            raise InvalidValue("The parameters are not resolved; pass them through `admission.admit`.", param="params")
        ids = request.prompt_token_ids
        if ids and not (min(ids) >= 0 and max(ids) < self.model_info.vocab_size):
            raise InvalidValue(
                f"Prompt token ids must be between 0 and {self.model_info.vocab_size - 1}.", param="prompt"
            )
        if request.told:
            check_told(request.told, request.params, self.model_info.vocab_size)

    def _count(self, plan: StepPlan) -> None:
        self.num_steps += 1
        self.num_prefill_tokens += plan.num_prompt_tokens
        self.num_decode_tokens += plan.num_tokens - plan.num_prompt_tokens - plan.num_draft_tokens
