"""One run: a scheduler, a fake model, clients and faults in virtual time, determined by the seed.

The loop is that of `app/engine/engine.py`, scheduler and fault recovery are those of the product; model, clients and
time are simulated.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import count
from random import Random
from typing import NamedTuple

from app.contract.errors import EngineFailed, InvalidValue, RequestError
from app.engine.recovery import Recovery
from app.engine.schedule.group import SequenceGroup
from app.engine.schedule.policy import make_policy
from app.engine.schedule.scheduler import Scheduler
from app.engine.schedule.step_plan import StepPlan, StepResult
from app.engine.schedule.step_results import StepProgress
from tests.engine.schedule.fake_model import FakeModel, StepFailed
from tests.engine.schedule.fake_tokens import EOS_TOKEN_ID
from tests.simulation import invariants
from tests.simulation.client import Client, search_alone
from tests.simulation.connector import FakeConnector
from tests.simulation.dump import SimulationFailed, describe
from tests.simulation.scenario import Faults, Scenario, make_scenario
from tests.simulation.trace import Trace
from tests.simulation.workload import ClientScript, Domain, Workload, fits_alone

HOST_S = 1e-4  # between two steps
HOUR_S = 3600.0


class InFlight(NamedTuple):
    """A launched step, and the time when it is done."""

    plan: StepPlan
    result: StepResult
    done_at: float


class Simulation:
    """A simulated server with the clients of one scenario."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        limits = scenario.limits
        self.model = FakeModel(limits.block_size, scenario.costs)
        self.connector = FakeConnector(limits.block_size, self.model.fill) if scenario.has_connector else None
        self.scheduler = Scheduler(
            limits,
            policy=make_policy(scenario.policy),
            eos_token_ids=(EOS_TOKEN_ID,),
            connector=self.connector,
        )
        self.recovery = Recovery(self.scheduler)
        self.workload = Workload(scenario.seed, scenario.mix, limits)
        self.clients: dict[str, Client] = {}  # open ones
        self.in_flight: deque[InFlight] = deque()
        self.counts: Counter[str] = Counter()
        self.trace = Trace()
        self.last_plan: StepPlan | None = None
        self.now = 0.0
        self.num_steps = 0
        self.num_pinned = 0
        self.checker = invariants.InvariantChecker(self)
        self._faults = Faults()  # none while prefixes are pinned
        self._rng = Random(f"faults {scenario.seed}")
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._event_numbers = count()

    # --- Time -------------------------------------------------------------------------------------------------------

    def at(self, time: float, action: Callable[[], None]) -> None:
        """Schedule an action at a virtual time."""
        heapq.heappush(self._events, (time, next(self._event_numbers), action))

    def run(self, max_steps: int) -> None:
        """Run until every request has ended and nothing is leaked, or for `max_steps`."""
        self._pin_prefixes()
        self._faults = self.scenario.faults
        for time in self.scenario.arrivals.times(Random(f"arrivals {self.scenario.seed}")):
            self.at(time, self._arrive)
        while self.turn():
            if self.num_steps >= max_steps:
                return
        invariants.i11_nothing_leaks(self)
        if self.scheduler.speculation is not None:
            self.counts["accepted_tokens"] += self.scheduler.speculation.counts.num_accepted_tokens

    def turn(self) -> bool:
        """Fire the events that are due, then run a step; False when no event is left."""
        self._fire_due()
        self._expire()
        if self.scheduler.queues.has_ready or self.in_flight:
            self.step()
            self.checker.after_step()
            return True
        invariants.next_deadline_is_known(self)
        times = [self._events[0][0]] if self._events else []
        if self.scheduler.deadlines.next_time is not None:
            times.append(self.scheduler.deadlines.next_time)
        if not times:
            invariants.s5_everything_ends(self)
            return False
        self.now = max(self.now, min(times))
        return True

    def _pin_prefixes(self) -> None:
        """Compute and pin common prefixes before the first request, as a server does when it starts."""
        for number in range(self.scenario.num_pins):
            script = self.workload.next_pin(number)
            if self.scheduler.limits.enable_prefix_caching and self.submit(script) is not None:
                while self.turn():
                    pass
                num_tokens = self.scheduler.pin(script.request)
                self.num_pinned += num_tokens // self.scenario.limits.block_size

    def _fire_due(self) -> None:
        while self._events and self._events[0][0] <= self.now:
            heapq.heappop(self._events)[2]()

    # --- Steps ------------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Launch the next step, then finish all but the newest in flight."""
        self.num_steps += 1
        self.now += HOST_S
        self.recovery.choose()
        self.checker.before_schedule()
        self.last_plan = plan = self.scheduler.schedule(self.now)
        self.checker.after_schedule(plan)
        if plan is None:
            self._finish_steps_except(0)
            return
        self.trace.add(plan)
        try:
            self._launch(plan)
        except (StepFailed, MemoryError) as error:
            if self._finish_steps_except(0):  # else the fault of an older step has ended this one too
                self._recover(plan, error)
            return
        if self._happens(self._faults.interrupts):
            self._interrupt()
        self._finish_steps_except(self.scenario.limits.run_ahead)

    def _happens(self, chance: float) -> bool:
        return chance > 0.0 and self._rng.random() < chance

    def _launch(self, plan: StepPlan) -> None:
        faults = self._faults
        if self._happens(faults.raises) or plan.step in faults.raises_at or self._is_culprit(plan):
            self.model.fail(plan, StepFailed("raised"), is_late=self._happens(0.5))
        if plan.num_tokens > faults.max_tokens:
            self.model.fail(plan, MemoryError(), is_late=False)
        result = self.model.run(plan)
        if self._happens(faults.is_slow):
            result = replace(result, duration_s=100 * result.duration_s)
        starts_at = max(self.now, self.in_flight[-1].done_at if self.in_flight else 0.0)
        self.in_flight.append(InFlight(plan, result, starts_at + result.duration_s + result.transfer_s))

    def _finish_steps_except(self, num_newest: int) -> bool:
        """Finish all but the `num_newest` newest steps in flight; False if one of them failed."""
        while len(self.in_flight) > num_newest:
            plan, result, done_at = self.in_flight.popleft()
            self.now = max(self.now, done_at)
            if self._happens(self._faults.jumps):
                self.now += HOUR_S
            if self._happens(self._faults.raises_late):
                failed = [plan, *(each.plan for each in self.in_flight)]
                self.in_flight.clear()
                self.model.spoil(failed)
                self._recover(plan, StepFailed("raised late"))
                return False
            self.model.done(plan.step)
            self._process(self.scheduler.update(result, self.now))
            if self._happens(self._faults.forgets):
                self._forget()
        return True

    def _process(self, progress: StepProgress) -> None:
        self.recovery.take_progress(progress)
        for sequence, sample in progress.gained:
            if sequence.is_finished:
                continue  # by an earlier token of this step
            client = self.clients[sequence.request.id]
            reason = client.gain(sequence, sample.token_id)
            if reason is not None:
                client.end(sequence, reason)
                self.scheduler.finish(sequence)
        for group in progress.searched:
            self._finish_search(group)
        self.checker.after_update()
        for client in dict.fromkeys(self.clients[sequence.request.id] for sequence, _ in progress.gained):
            self._behave(client)

    def _behave(self, client: Client) -> None:
        """Let a client act according to its script after new tokens."""
        script = client.script
        if not client.is_open:
            self._close(client)
        elif client.num_gained == script.cancels_after:
            self.abort(client.id, "cancelled")
        elif client.num_gained == script.pauses_after:
            self.pause(client.id)
            self.at(self.now + script.pause_s, partial(self.resume, client.id))

    def _finish_search(self, group: SequenceGroup) -> None:
        client = self.clients[group.request.id]
        assert group.search is not None
        params = group.request.params
        assert group.search.results() == search_alone(group.request.prompt_token_ids, params), (
            "the beam search has another result"
        )
        self.scheduler.finish_group(group)
        client.ends = dict.fromkeys(range(params.n), "searched")
        self._close(client)

    def _is_culprit(self, plan: StepPlan) -> bool:
        found = [each for each in self.clients.values() if each.is_culprit]
        if not found:
            return False
        ids = {one.sequence_id for one in (*plan.chunks, *plan.sampled)}
        return any(one.id in ids for each in found for one in each.group.open)

    def _recover(self, plan: StepPlan, error: Exception) -> None:
        """Handle a failed step: all requests continue, except for the culprit once it is found."""
        self.counts["faults"] += 1
        groups = self.scheduler.abandon(plan)
        self.checker.after_abandon(groups)
        try:
            culprits = self.recovery.take_fault(groups, error, self.now)
        except EngineFailed:  # the process would exit here; the next one starts with a new `Recovery`
            invariants.only_culprits_fail(self, None)
            self.scheduler.restrict(None)
            self.recovery = Recovery(self.scheduler)
            self.counts["gave up"] += 1
            return
        for group in culprits:
            client = self.clients[group.request.id]
            invariants.only_culprits_fail(self, client)
            self.abort(client.id, "failed")

    def _forget(self) -> None:
        """Evict a cached block, or all, early."""
        cache = self._rng.choice([self.scheduler.tables.cache, self.scheduler.tables.swap.cache])
        if self._happens(0.1):
            cache.clear()
        else:
            cache.remove(self._rng.randint(1, self.scenario.limits.num_blocks))

    # --- Clients ----------------------------------------------------------------------------------------------------

    def _arrive(self, history: tuple[int, ...] = (), domain: Domain | None = None) -> None:
        self.submit(self.workload.next_request(self.now, history, domain))

    def submit(self, script: ClientScript) -> Client | None:
        """Add a request; None if it is rejected, which it must be if and only if it could never run (S8)."""
        request, limits = script.request, self.scenario.limits
        seats = min(limits.max_num_seqs, limits.max_num_batched_tokens)
        capacity = limits.num_blocks - self.num_pinned
        is_possible = fits_alone(len(request.prompt_token_ids), request.params, limits, capacity)
        try:
            group = self.scheduler.add(request)
        except RequestError as error:
            has_too_many_sequences = isinstance(error, InvalidValue) and request.params.num_sequences > seats
            assert has_too_many_sequences or not is_possible, f"{request.id} would fit: {error}"
            self.counts["rejected"] += 1
            return None
        assert is_possible and request.params.num_sequences <= seats, f"{request.id} can never run"
        is_culprit = self._happens(self._faults.is_culprit)
        client = self.clients[request.id] = Client(script, group, is_culprit, waiting_since=self.num_steps)
        if script.cancels_at is not None:
            self.at(self.now + script.cancels_at, partial(self.abort, request.id, "cancelled"))
        return client

    def abort(self, request_id: str, reason: str) -> None:
        """Abort a request in any state; a second abort, or one after its end, changes nothing (S9)."""
        client = self.clients.get(request_id)
        group = self.scheduler.abort(request_id)
        assert group is (client.group if client else None), f"{request_id} was not aborted as an open request"
        assert self.scheduler.abort(request_id) is None, "an aborted request can be aborted again"
        if client is None:
            return
        self.counts[reason] += 1
        for choice in client.answers.keys() - client.ends.keys():
            client.ends[choice] = reason
        self._close(client)

    def pause(self, request_id: str) -> None:
        """Pause a request: its client reads slowly."""
        self.scheduler.pause(request_id)
        if request_id in self.clients:
            self.clients[request_id].is_ready = False
            self.counts["pauses"] += 1

    def resume(self, request_id: str) -> None:
        """Resume a request: its client reads again."""
        self.scheduler.resume(request_id)
        if request_id in self.clients:
            self.clients[request_id].is_ready = True

    def _interrupt(self) -> None:
        """Abort, pause or resume a request between schedule and update."""
        if not self.clients:
            return
        client = self._rng.choice(list(self.clients.values()))
        action = self._rng.random()
        if action < 0.3:
            self.abort(client.id, "cancelled")
        elif action < 0.6:
            self.pause(client.id)
            self.at(self.now + self._rng.expovariate(20), partial(self.resume, client.id))
        else:
            self.resume(client.id)

    def _expire(self) -> None:
        due = invariants.due_requests(self)
        late = self.scheduler.deadlines.expired(self.now)
        assert len(late) == len(due) and {request_id for request_id, _ in late} == due, (
            "deadlines are reported too early, too late or twice"
        )
        for request_id, error in late:
            self.abort(request_id, error.code)

    def _close(self, client: Client) -> None:
        invariants.s11_one_end_each(client)
        invariants.s9_nothing_is_held(client)
        del self.clients[client.id]
        self.counts["ended"] += 1
        self.counts["hits"] += client.group.num_cached_tokens
        if client.script.follows_up and client.group.search is None:
            self._follow_up(client)

    def _follow_up(self, client: Client) -> None:
        """Schedule the next turn of a conversation; its prompt begins with the tokens of this request."""
        request = client.script.request
        history = request.prompt_token_ids + tuple(client.answers[0])
        if len(history) < self.scenario.mix.longest - 1:
            domain = Domain(request.tenant, request.cache_salt)
            self.at(self.now + self._rng.expovariate(10), partial(self._arrive, history, domain))


def run_seed(seed: int, max_steps: int = 1_000_000) -> Simulation:
    """Run the scenario of a seed; see `run_scenario`."""
    return run_scenario(make_scenario(seed), max_steps)


def run_scenario(scenario: Scenario, max_steps: int = 1_000_000) -> Simulation:
    """Run a scenario to its end, or for `max_steps`.

    Raises:
        SimulationFailed: a rule was violated.
    """
    simulation = Simulation(scenario)
    try:
        simulation.run(max_steps)
    except Exception as error:
        what = f"seed {scenario.seed}, step {simulation.num_steps}: {type(error).__name__}: {error}"
        raise SimulationFailed(f"{what}\n{describe(simulation)}\n{what}") from error
    return simulation
