"""The rules that must hold after every step. They use none of the scheduler's internal records.

The records themselves (I1-I3, I5, I7, I8, I10) are compared with each other by `Scheduler.check_integrity`; the fake
model rejects plans that write shared blocks (I4) or read blocks of other sequences (I6).
"""

from __future__ import annotations

from collections import Counter
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from app.engine.schedule.group import SequenceGroup
from app.engine.schedule.limits import max_logit_rows
from app.engine.schedule.sequence import (
    FINISHED,
    PAUSED,
    PREEMPTED,
    RUNNING,
    SWAPPED,
    TRANSITIONS,
    WAITING,
    SequenceStatus,
)
from app.engine.schedule.step_plan import StepPlan
from tests.engine.pictures import Watched
from tests.simulation.client import Client
from tests.simulation.prompt_waits import PromptWaits
from tests.simulation.seats import SeatWaits, s12_seats_move_to_accounts_with_fewer

if TYPE_CHECKING:
    from tests.simulation.simulation import Simulation

# One `schedule` may move a group twice: a victim may start again at once, a resumed one may become a victim.
MOVES: dict[SequenceStatus, frozenset[SequenceStatus]] = {
    before: frozenset({before, *after, *chain.from_iterable(TRANSITIONS[status] for status in after)}) - {FINISHED}
    for before, after in TRANSITIONS.items()
}
HOLDING = (RUNNING, PAUSED)
AWAY = (PREEMPTED, SWAPPED)


class Stalled(AssertionError):
    """There is work, and no progress."""


class Snapshot(NamedTuple):
    """The state of a request before a step is scheduled."""

    client: Client
    group: SequenceGroup
    status: SequenceStatus
    is_ready: bool
    is_protected: bool
    num_preemptions: int


class InvariantChecker:
    """Checks the rules of a simulation before and after each call."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        limits = simulation.scenario.limits
        # More steps than any prompt takes, recomputed after every preemption that can happen between two tokens.
        self.patience = 64 + 4 * min(limits.max_model_len, limits.num_blocks * limits.block_size)
        self.is_fair = simulation.scenario.policy == "fair"
        self.is_shrinking = False
        self.prompt_waits = PromptWaits(simulation)
        self.num_idle = 0  # steps since a sequence gained a token or ended
        self._last_progress = (-1, -1)
        self._before: list[Snapshot] = []
        self.seat_waits = SeatWaits()
        self.watched = Watched(simulation.scheduler)

    def before_schedule(self) -> None:
        """Record the state of all requests."""
        scheduler = self.simulation.scheduler
        self.is_shrinking = (
            scheduler.queues.num_seats > scheduler.budget.tokens
        )  # after a lack of memory: some sequences must be preempted
        self._before = [
            Snapshot(each, group, group.status, group.ready, group.is_protected, group.num_preemptions)
            for each in self.simulation.clients.values()
            for group in (each.group,)
        ]
        self.prompt_waits.before_schedule()

    def after_schedule(self, plan: StepPlan | None) -> None:
        """Check the result of one `schedule`."""
        simulation, before = self.simulation, self._before
        s1_states_move_along_the_table(before)
        s2_budgets_are_kept(simulation, plan)
        s5_ready_work_gives_a_step(simulation, plan)
        if self.is_fair:
            s12_seats_move_to_accounts_with_fewer(before)
        if simulation.scheduler.preemption.allowed is None:
            s6_no_request_is_overtaken(before, self.is_fair)
        victims = [one for one in before if one.group.num_preemptions > one.num_preemptions]
        if victims and simulation.scheduler.preemption.allowed is None and not self.is_shrinking:
            s7_victims_come_from_the_end(before, victims, self.is_fair)
            s10_a_victim_has_gained_a_token(victims)
        simulation.counts["preemptions"] += len(victims)
        simulation.counts["swaps"] += sum(one.group.status is SWAPPED for one in victims)
        for one in before:
            if one.group.status is RUNNING and (one.status in AWAY or one in victims):
                one.client.num_gained_at_restart = one.client.num_gained
        self.prompt_waits.after_schedule(plan)
        if plan is not None:
            drafts_use_only_spare_budget(simulation, plan)
            i4_shared_blocks_are_not_written(simulation, plan)
            self._count(plan)

    def after_update(self) -> None:
        """Record the tokens that beam searches gained."""
        for client in self.simulation.clients.values():
            if client.group.search is not None and client.group.open:
                client.num_gained = max(client.num_gained, len(client.group.open[0].output_token_ids))

    def after_abandon(self, groups: list[SequenceGroup]) -> None:
        """Check the groups of a failed step, and restart the count of steps without progress."""
        self.num_idle = 0
        for group in groups:
            assert group.status is PREEMPTED, "the groups of a failed step must restart"
        for client in self.simulation.clients.values():
            if client.group.status in AWAY:
                client.num_gained_at_restart = -1

    def after_step(self) -> None:
        """Check the state after a step."""
        simulation = self.simulation
        simulation.scheduler.check_integrity()
        s1_each_request_is_counted_once(simulation)
        s3_no_more_is_computed_than_there_is(simulation)
        i3_i9_unused_blocks_are_free(simulation)
        self.watched.check()
        if self.is_fair:
            self.seat_waits.check(simulation)
        progress = (simulation.counts["ended"], sum(each.num_gained for each in simulation.clients.values()))
        self.num_idle = self.num_idle + 1 if progress == self._last_progress else 0
        self._last_progress = progress
        if self.num_idle > self.patience:
            raise Stalled(f"no request gained a token or ended for {self.num_idle} steps")

    def _count(self, plan: StepPlan) -> None:
        counts = self.simulation.counts
        counts["steps"] += 1
        counts["tokens"] += plan.num_tokens
        counts["draft_tokens"] += plan.num_draft_tokens
        counts["copies"] += len(plan.copies)
        counts["swap_ins"] += len(plan.swap_ins)
        counts["swap_outs"] += len(plan.swap_outs)


# --- Blocks -------------------------------------------------------------------------------------------------------


def i4_shared_blocks_are_not_written(simulation: Simulation, plan: StepPlan) -> None:
    """I4: a block that is written is used by no other sequence, except by forks that start in this step.

    (The fake model knows only the tables of sequences with rows.)
    """
    sequences = {one.id: one for each in simulation.clients.values() for one in each.group.open}
    forks = {sampled.sequence_id for sampled in plan.sampled}.difference(chunk.sequence_id for chunk in plan.chunks)
    size = simulation.scenario.limits.block_size
    ends = {chunk.sequence_id: chunk.start + len(chunk.token_ids) for chunk in plan.chunks}  # with draft tokens
    num_used = {one.id: -(-max(one.num_scheduled, ends.get(one.id, 0)) // size) for one in sequences.values()}
    tables = (one.block_table[: num_used[one.id]] for one in sequences.values() if one.id not in forks)
    num_tables = Counter(chain.from_iterable(tables))
    for chunk in plan.chunks:
        table = sequences[chunk.sequence_id].block_table
        for block_id in table[chunk.start // size : (chunk.start + len(chunk.token_ids) - 1) // size + 1]:
            assert num_tables[block_id] == 1, f"block {block_id} is shared, and sequence {chunk.sequence_id} writes"


def i3_i9_unused_blocks_are_free(simulation: Simulation) -> None:
    """I3, I9: blocks without an owner are free once no step is in flight; groups of two domains never share blocks."""
    holders: dict[int, bytes] = {}
    for client in simulation.clients.values():
        context = client.group.context
        for sequence in client.group.open:
            for block_id in sequence.block_table:
                assert holders.setdefault(block_id, context) == context, f"block {block_id} is in two domains"
    held = holders.keys()
    if simulation.connector is not None and simulation.connector.kept:
        held = held | set(chain.from_iterable(chain.from_iterable(simulation.connector.kept.values())))
    num_unheld = simulation.scenario.limits.num_blocks - len(held)
    num_free = simulation.scheduler.tables.pool.num_free
    assert num_free <= num_unheld, "a block is free and held"
    assert num_free >= num_unheld - simulation.num_pinned or simulation.in_flight, "a block is lost"


def i11_nothing_leaks(simulation: Simulation) -> None:
    """I11: at the end of a run every block of both memories is free, pinned or evictable."""
    scheduler = simulation.scheduler
    while simulation.connector is not None and simulation.connector.kept:
        assert scheduler.schedule(simulation.now) is None
    simulation.checker.watched.check()
    simulation.checker.watched.check_records()
    scheduler.check_integrity()
    assert scheduler.tables.pool.num_free == simulation.scenario.limits.num_blocks - simulation.num_pinned
    assert scheduler.tables.swap.pool.num_free == simulation.scenario.limits.num_host_blocks
    assert scheduler.queues.rows.num_free == scheduler.queues.rows.num_rows
    assert scheduler.deadlines.next_time is None
    scheduler.tables.cache.clear()
    scheduler.tables.swap.cache.clear()
    scheduler.check_integrity()


# --- Requests -----------------------------------------------------------------------------------------------------


def s1_states_move_along_the_table(before: list[Snapshot]) -> None:
    """S1: a request keeps its state, or changes it according to the table of transitions."""
    for one in before:
        assert one.group.status in MOVES[one.status], f"{one.client.id} went from {one.status} to {one.group.status}"


def s1_each_request_is_counted_once(simulation: Simulation) -> None:
    """S1: the open requests are the running, waiting and paused ones."""
    scheduler = simulation.scheduler
    num_open = len(simulation.clients)
    assert len(scheduler.queues.running) + scheduler.queues.num_waiting + scheduler.num_paused == num_open
    for client in simulation.clients.values():
        assert client.is_open and client.group.ready == client.is_ready


def s2_budgets_are_kept(simulation: Simulation, plan: StepPlan | None) -> None:
    """S2: the token budget of the step and the number of seats are respected; PAUSED groups are not counted."""
    limits = simulation.scenario.limits
    groups = [each.group for each in simulation.clients.values()]
    assert sum(len(group.open) for group in groups if group.status is RUNNING) <= limits.max_num_seqs
    if plan is not None:
        assert 0 <= plan.num_tokens <= min(limits.max_num_batched_tokens, simulation.scheduler.budget.tokens)


def drafts_use_only_spare_budget(simulation: Simulation, plan: StepPlan) -> None:
    """A step with draft tokens has no prompts, no draft goes beyond the end, and there are enough logit rows."""
    limits = simulation.scenario.limits
    assert len(plan.logit_rows) <= max_logit_rows(limits)
    if not plan.num_draft_tokens:
        return
    assert plan.num_prompt_tokens == 0
    sequences = {one.id: one for each in simulation.clients.values() for one in each.group.open}
    for chunk in plan.chunks:
        sequence = sequences[chunk.sequence_id]
        num_draft = len(chunk.token_ids) - 1
        assert chunk.start >= sequence.num_prompt and num_draft <= limits.speculative_ngram
        assert chunk.start + len(chunk.token_ids) <= sequence.max_slots, "a draft token beyond the end"
        assert not num_draft or sequence.group.search is None, "a beam has draft tokens"


def s3_no_more_is_computed_than_there_is(simulation: Simulation) -> None:
    """S3: computed <= scheduled <= tokens <= the request's limit. S4: the client has received all tokens."""
    for client in simulation.clients.values():
        answers = client.answers if client.group.search is None else {}
        for one in client.group.open:
            assert one.choice not in answers or len(answers[one.choice]) == len(one.output_token_ids), "tokens are lost"
            assert 0 <= one.num_computed <= one.num_scheduled <= one.num_tokens
            assert one.num_tokens <= len(one.prompt_token_ids) + client.script.request.params.max_tokens


def s5_ready_work_gives_a_step(simulation: Simulation, plan: StepPlan | None) -> None:
    """S5: with no step in flight and no block kept by the connector, ready work gives a step."""
    if simulation.in_flight or (simulation.connector is not None and simulation.connector.kept):
        return
    if plan is None and simulation.scheduler.queues.has_ready:
        raise Stalled("there is ready work, nothing is in flight, and there is no step")


def s5_everything_ends(simulation: Simulation) -> None:
    """S5: when no event is left, every request has ended."""
    if simulation.clients:
        raise Stalled(f"{', '.join(simulation.clients)}: not finished, and no event is left")


def s6_no_request_is_overtaken(before: list[Snapshot], is_fair: bool) -> None:
    """S6: a group that starts or restarts was the first, in the policy's order, of all ready groups without blocks.

    Under `fair` this holds within an account; the next account is determined by seats.
    """
    outside = (WAITING, *AWAY)
    last: dict[str, tuple[float, ...]] = {}
    for one in before:
        if one.status in outside and one.group.status not in outside:
            account = one.group.account if is_fair else ""
            last[account] = max(last.get(account, ()), one.group.sort_key)
    for one in before:
        if one.status in outside and one.group.status in outside and one.group.ready:
            key = last.get(one.group.account if is_fair else "", ())
            assert one.group.sort_key > key, f"{one.client.id} was overtaken"


def s7_victims_come_from_the_end(before: list[Snapshot], victims: list[Snapshot], is_fair: bool) -> None:
    """S7: victims are PAUSED groups, the last in order first; then RUNNING ones from the end, never the first one.

    Under `fair` this holds within an account; the account is determined by seats and blocks.
    """
    running = [one.group for one in before if one.group.status is RUNNING]
    for victim in victims:
        key, account = victim.group.sort_key, victim.group.account
        of_account = [one for one in before if not is_fair or one.group.account == account]
        kept_blocks = [one for one in of_account if one.status in HOLDING and one not in victims]
        if victim.status is RUNNING:
            assert not any(one.group.status is PAUSED for one in of_account), "a paused group kept its blocks"
            assert min(group.sort_key for group in running) < key, "the first group was a victim"
            younger = [one for one in kept_blocks if one.group.sort_key > key]
            assert all(one.is_protected for one in younger), "a younger group kept its blocks"
        elif victim.status is PAUSED and not victim.is_ready:
            paused = [one for one in kept_blocks if one.status is PAUSED and not one.is_ready]
            assert all(one.group.sort_key < key for one in paused), "a younger paused group kept its blocks"


def s9_nothing_is_held(client: Client) -> None:
    """S9: an ended request has neither blocks nor rows."""
    assert client.group.status is FINISHED and not client.group.open
    for sequence in client.group.sequences:
        assert not sequence.block_table and not sequence.host_table and sequence.row is None


def s10_a_victim_has_gained_a_token(victims: list[Snapshot]) -> None:
    """S10: between two preemptions a request gains a token."""
    for victim in victims:
        client = victim.client
        assert client.num_gained > client.num_gained_at_restart, (
            f"{client.id} lost its blocks twice without gaining a token"
        )


def s11_one_end_each(client: Client) -> None:
    """S11: each choice ends once, with the length according to its finish reason."""
    params = client.script.request.params
    if client.group.search is not None:
        return
    assert client.ends.keys() == client.answers.keys() == set(range(params.num_sequences))
    for choice, reason in client.ends.items():
        answer = client.answers[choice]
        assert len(answer) <= params.max_tokens
        assert (len(answer) == params.max_tokens) == (reason == "length"), f"{client.id}: {reason}"


def only_culprits_fail(simulation: Simulation, culprit: Client | None) -> None:
    """If only culprits make steps raise, only they fail, and the engine never gives up."""
    faults = simulation.scenario.faults
    is_small = faults.max_tokens < simulation.scenario.limits.max_num_batched_tokens
    if not (faults.raises or faults.raises_late or faults.raises_at or is_small):
        assert culprit is not None and culprit.is_culprit, f"{culprit and culprit.id} failed instead of a culprit"


def next_deadline_is_known(simulation: Simulation) -> None:
    """The scheduler's next deadline is the earliest deadline of the open requests."""
    times = [time for client in simulation.clients.values() for time in _deadlines(client)]
    assert simulation.scheduler.deadlines.next_time == min(times, default=None)


def due_requests(simulation: Simulation) -> set[str]:
    """The open requests past a deadline: for their start, if they have not started, or for their end."""
    now = simulation.now
    return {each.id for each in simulation.clients.values() if any(time <= now for time in _deadlines(each))}


def _deadlines(client: Client) -> list[float]:
    request = client.script.request
    start = request.start_deadline if client.group.status is WAITING else None
    return [time for time in (start, request.deadline) if time is not None]
