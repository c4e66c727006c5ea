"""Describes the state of a failed run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.engine.schedule.sequence import Sequence
from app.engine.schedule.step_plan import StepPlan

if TYPE_CHECKING:
    from tests.simulation.client import Client
    from tests.simulation.simulation import Simulation


class SimulationFailed(AssertionError):
    """A run violated a rule; the message has the seed, the step, the rule and the state."""


def describe(simulation: Simulation) -> str:
    """Return the state of a simulation as text."""
    scheduler = simulation.scheduler
    lines = [
        f"now {simulation.now:.4f}, {len(simulation.in_flight)} steps in flight, free blocks "
        f"{scheduler.tables.pool.num_free}, {len(scheduler.queues.running)} running, {scheduler.num_paused} paused, "
        f"{scheduler.queues.num_waiting} waiting, "
        f"allowed {scheduler.preemption.allowed and sorted(scheduler.preemption.allowed)}",
        repr(simulation.scenario),
    ]
    for client in simulation.clients.values():
        lines += _describe_client(client)
    if simulation.last_plan is not None:
        lines += _describe_plan(simulation.last_plan)
    return "\n".join(lines)


def _describe_client(client: Client) -> list[str]:
    group, params = client.group, client.script.request.params
    line = (
        f"{client.id}: {group.status.value}{'' if group.ready else ', not ready'}"
        f"{', protected' if group.is_protected else ''}{', folded' if group.is_folded else ''}"
        f"{', searching' if group.search else ''}{', a culprit' if client.is_culprit else ''}; prompt "
        f"{len(client.script.request.prompt_token_ids)}, max_tokens {params.max_tokens}, key {group.sort_key}"
    )
    return [line, *map(_describe_sequence, group.open)]


def _describe_sequence(sequence: Sequence) -> str:
    return (
        f"    {sequence.id} (choice {sequence.choice}, row {sequence.row}): tokens {sequence.num_tokens}, scheduled "
        f"{sequence.num_scheduled}, computed {sequence.num_computed}, blocks {sequence.block_table}, host "
        f"{sequence.host_table}"
    )


def _describe_plan(plan: StepPlan) -> list[str]:
    return [
        f"step {plan.step}: released {plan.released_rows}",
        f"    swap_outs {[tuple(copy) for copy in plan.swap_outs]}",
        f"    swap_ins {[tuple(copy) for copy in plan.swap_ins]}, copies {[tuple(copy) for copy in plan.copies]}",
        *(f"    row {start.row} starts for {start.sequence_id}" for start in plan.row_starts),
        *(f"    row {write.row} from entry {write.first}: {write.block_ids}" for write in plan.table_writes),
        *(f"    {one.sequence_id} from {one.start}: {len(one.token_ids)} tokens" for one in plan.chunks),
        f"    sampled: {[one.sequence_id for one in plan.sampled]}",
    ]
