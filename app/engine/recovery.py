"""Recovery: what happens after a step that raised.

A fault may be transient (replay the step), or caused by one request whose step always raises (find that culprit and
fail only that request). No tokens are lost either way: the groups of the step start again with their tokens as prompt.

    a step raises ------> all its requests are replayed together
    it raises again ----> its requests are suspects: only one half of them runs (the probe)
      a probe raises ---> it is split in halves again; a single request that raises twice at the same tokens, which were
                        not computed in between: culprit
      a probe succeeds -> each of its requests gained a token, ended or paused: they are cleared, the next probe runs
    no probe is left ---> all requests run

Only the probe runs while there is one, so that a fault hits no other request. Running out of memory makes no suspects
as long as steps can be made smaller. The engine itself is broken if faults recur without a culprit, or if after several
culprits in a row even the canary raises, a step of one token that belongs to no request: the engine fails, and a new
process can start. After some errors a GPU accepts no more work from this process: then the engine fails at once.
"""

from __future__ import annotations

import logging
from collections import deque
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING

from app.contract.engine_counts import RecoveryCounts
from app.contract.errors import EngineFailed
from app.contract.requests import EngineRequest
from app.contract.sampling_defaults import SamplingDefaults
from app.contract.sampling_params import SamplingParams
from app.engine.schedule.group import SequenceGroup
from app.engine.schedule.scheduler import Scheduler
from app.engine.schedule.sequence import FINISHED
from app.engine.schedule.step_plan import StepPlan
from app.engine.schedule.step_results import StepProgress
from app.runtime.clock import Clock

if TYPE_CHECKING:  # the simulator of the scheduler needs no torch
    from app.engine.execute.interfaces import InFlight, Runner

_log = logging.getLogger("quire.engine")

# More faults without a culprit, within a minute, mean that the engine is broken.
MAX_FAULTS = 30
WINDOW_S = 60.0
# After so many culprits without a successful step in between, the canary tests whether the engine is broken instead.
MAX_CULPRITS_IN_A_ROW = 5
# Errors of CUDA after which every later call fails too, whatever it does.
_STICKY_ERRORS = (
    "illegal memory access",
    "illegal address",
    "misaligned address",
    "illegal instruction",
    "invalid program counter",
    "invalid address space",
    "hardware stack error",
    "device-side assert",
    "unspecified launch failure",
    "launch timed out",
    "ECC error",
    "NVLink error",
    "device is lost",
    "GPU is lost",
    "busy or unavailable",
    "context is destroyed",
    "unknown error",
)


class Recovery:
    """Decides which requests run after a fault, and finds the culprit. Engine thread only.

    Attributes:
        counts: steps that raised, and requests that were found to be the cause.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.counts = RecoveryCounts()
        self._scheduler = scheduler
        # By group id, and only until the request gains a token or ends: requests of steps that raised, and requests
        # that were alone in such a step, with the tokens that the step was to compute, until these are computed.
        self._hit: dict[int, SequenceGroup] = {}
        self._alone: dict[int, range] = {}
        self._probes: list[list[SequenceGroup]] = []  # the last one runs
        self._waiting_for: set[int] = set()  # ids of those in the running probe that have not gained a token yet
        self._unexplained: deque[float] = deque(maxlen=MAX_FAULTS)
        self._num_culprits_in_a_row = 0
        self._num_incident_faults = 0  # in `_unexplained`, of the present incident

    def recover(
        self, plan: StepPlan, error: Exception, in_flight: deque[InFlight], runner: Runner, clock: Clock
    ) -> list[SequenceGroup]:
        """Handle a failed step and all launched after it; return the groups to fail, all others continue.

        Raises:
            EngineFailed: steps keep failing without a culprit, or the device is broken.
        """
        check_device(error)
        while in_flight:
            with suppress(Exception):  # the device must be done with these steps; their results are void
                in_flight.popleft().wait()
        culprits = self.take_fault(self.abandon(plan), error, clock())
        if self.should_run_canary():
            self._run_canary(runner, clock)
        return culprits

    def abandon(self, plan: StepPlan) -> list[SequenceGroup]:
        """Abandon a step and all after it, unless that was done when an older step failed."""
        return self._scheduler.abandon(plan) if self._scheduler.is_in_flight(plan) else []

    def take_fault(self, groups: list[SequenceGroup], error: Exception, now: float) -> list[SequenceGroup]:
        """Handle a step over `groups` that raised and was abandoned; return the culprits, which are to fail.

        Raises:
            EngineFailed: too many faults without a culprit.
        """
        self.counts.num_faults += 1
        _log.warning("a step over %d requests raised and is replayed: %r", len(groups), error, exc_info=error)
        if is_out_of_memory(error) and self._scheduler.budget.halve():
            _log.warning("out of memory: steps are limited to %d tokens for now", self._scheduler.budget.tokens)
            return []  # fewer tokens are tried before there are suspects
        if not self._probes:
            self._count_unexplained(now)
        is_repeated = any(group.id in self._hit for group in groups)
        self._hit.update((group.id, group) for group in groups)
        if len(groups) < 2:
            return [culprit for group in groups for culprit in self._take_alone(group)]
        if self._probes or is_repeated:
            self._split(groups)
        return []

    def take_progress(self, progress: StepProgress) -> None:
        """Clear the groups that gained a token in a step that succeeded."""
        self._num_culprits_in_a_row = 0
        if not self._hit:
            return
        ended = [group for group in self._hit.values() if group.status is FINISHED]
        for group in chain(progress.groups, ended):
            self._hit.pop(group.id, None)
            self._alone.pop(group.id, None)
            self._waiting_for.discard(group.id)
        for sequence in progress.sequences:
            tokens = self._alone.get(sequence.group.id)
            if tokens is not None and sequence.num_computed >= tokens.stop:
                del self._alone[sequence.group.id]  # they do not raise; it may be preempted, and compute them again
        if not self._probes:
            self._num_incident_faults = 0

    def should_run_canary(self) -> bool:
        """Return whether there were so many culprits in a row that a canary step should test the engine.

        The count starts again after the canary.
        """
        should_run_canary = self._num_culprits_in_a_row >= MAX_CULPRITS_IN_A_ROW
        if should_run_canary:
            self._num_culprits_in_a_row = 0
        return should_run_canary

    def choose(self) -> None:
        """Let the probe run in the next step: another one if the last succeeded, or all requests when none is left."""
        if not self._probes:
            return
        while self._probes:
            probe = [group for group in self._probes[-1] if group.id in self._waiting_for and _can_run(group)]
            if probe:
                self._scheduler.restrict(group.request.id for group in probe)
                return
            self._probes.pop()
            self._wait_for_probe()
        self._scheduler.restrict(None)
        self._num_incident_faults = 0
        _log.info("all requests run again")

    def _run_canary(self, runner: Runner, clock: Clock) -> None:
        """Compute one token for the canary, which belongs to no request.

        Raises:
            EngineFailed: the step raised.
        """
        params = SamplingParams(temperature=0.0, max_tokens=1, seed=0).with_defaults(SamplingDefaults())
        group = self._scheduler.add(EngineRequest("canary", (0,), params, clock()))
        self._scheduler.restrict([group.request.id])
        plan = self._scheduler.schedule(clock())
        try:
            if plan is not None:
                runner.launch(plan).wait()
        except Exception as error:
            raise EngineFailed(f"Every step fails, even the canary of a single token: {error!r}") from error
        finally:
            if plan is not None:
                self._scheduler.abandon(plan)
            self._scheduler.finish_group(group)
            self._scheduler.restrict(None)

    def _split(self, groups: list[SequenceGroup]) -> None:
        """Replace the probe that `groups` ran in by its halves; a late step may be of an earlier probe."""
        if self._probes and not {group.id for group in self._probes[-1]}.isdisjoint(group.id for group in groups):
            self._probes.pop()
        middle = (len(groups) + 1) // 2
        self._probes += [groups[middle:], groups[:middle]]
        self._wait_for_probe()

    def _take_alone(self, group: SequenceGroup) -> list[SequenceGroup]:
        """Handle a step of one request that raised: the culprit if an earlier one did that may share a token."""
        before, self._alone[group.id] = self._alone.get(group.id), group.dropped
        if before is None or before.stop <= group.dropped.start or group.dropped.stop <= before.start:
            return []
        return self._blame(group)

    def _wait_for_probe(self) -> None:
        self._waiting_for = {group.id for group in self._probes[-1]} if self._probes else set()

    def _blame(self, group: SequenceGroup) -> list[SequenceGroup]:
        self.counts.num_culprits += 1
        self._num_culprits_in_a_row += 1
        del self._hit[group.id]
        del self._alone[group.id]
        for _ in range(min(self._num_incident_faults, len(self._unexplained))):
            self._unexplained.pop()
        self._num_incident_faults = 0
        return [group]

    def _count_unexplained(self, now: float) -> None:
        while self._unexplained and now - self._unexplained[0] > WINDOW_S:
            self._unexplained.popleft()
        self._unexplained.append(now)
        self._num_incident_faults += 1
        if len(self._unexplained) == MAX_FAULTS:
            raise EngineFailed(f"{MAX_FAULTS} steps failed within {WINDOW_S:.0f} s; no single request is the cause.")


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether `error` means that memory ran out, on host or device (torch raises RuntimeError for both)."""
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(word in str(error) for word in ("out of memory", "alloc"))
    )


def check_device(error: BaseException) -> None:
    """Raise EngineFailed if after `error` the process can no longer use the device."""
    if is_device_broken(error):
        raise EngineFailed(
            f"The GPU has failed and accepts no more work from this process ({_first_line(error)}). Start the server "
            "again. If the GPU fails again, look for Xid errors in the kernel log (`dmesg`); with "
            "CUDA_LAUNCH_BLOCKING=1 in the environment, the traceback names the operation that failed."
        ) from error


def is_device_broken(error: BaseException) -> bool:
    """Return whether `error` is one of CUDA after which the process can no longer use the device.

    Only the first line is searched: torch adds advice to all errors of CUDA, also to those that pass, and it mentions
    device-side assertions.
    """
    line = _first_line(error)
    return isinstance(error, RuntimeError) and "CUDA" in line and any(words in line for words in _STICKY_ERRORS)


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), "")


def _can_run(group: SequenceGroup) -> bool:
    return group.status is not FINISHED and group.ready
