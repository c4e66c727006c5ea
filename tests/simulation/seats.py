"""S12: under `fair` seats move to the accounts that hold fewer, within a number of steps, and never without need."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from app.engine.schedule.group import SequenceGroup
from app.engine.schedule.sequence import FINISHED, PAUSED, RUNNING

if TYPE_CHECKING:
    from tests.simulation.invariants import Before
    from tests.simulation.simulation import Simulation

# While the seat that comes free next goes to an account, its request needs blocks, and time beside others' prompts.
MAX_PASSED_OVER = 64  # steps


class PassedOver:
    """Counts for how many steps accounts have waited for a seat that another one could give."""

    def __init__(self) -> None:
        self.num_steps: Counter[str] = Counter()

    def look(self, simulation: Simulation) -> None:
        """Look at the end of a step: nobody waits longer than blocks and time need."""
        poor = set() if simulation.scheduler.preemption.allowed is not None else accounts_with_too_few_seats(simulation)
        self.num_steps = Counter({account: self.num_steps[account] + 1 for account in poor})
        for account, number in self.num_steps.items():
            assert number <= MAX_PASSED_OVER, f"account {account!r} has had too few seats for {number} steps"


def s12_seats_go_to_who_holds_fewer(before: list[Before]) -> None:
    """S12: who gives its seat up keeps its blocks or is a victim; its account holds no fewer than any that waits."""
    held = held_seats([one.group for one in before])
    waiting = [one.group for one in before if one.group.ready and one.group.status not in (RUNNING, FINISHED)]
    for one in before:
        if one.status is RUNNING and one.group.status is PAUSED and one.group.ready:
            others = [held[group.account] for group in waiting if group.account != one.group.account]
            gained = [held[group.account] for group in (each.group for each in before if each.status is not RUNNING)]
            assert others or gained, "a seat was given up for nobody"
            assert held[one.group.account] >= min(others + gained), f"{one.client.id} gave a seat to who holds more"
            assert not one.is_protected, f"{one.client.id} gave its seat before it gained a token"


def accounts_with_too_few_seats(simulation: Simulation) -> set[str]:
    """The accounts of which a request waits, and would hold no more than another account after that gave a seat."""
    groups = [each.group for each in simulation.clients.values()]
    held = held_seats(groups)
    last = {group.account: group for group in sorted(groups, key=lambda one: one.sort_key) if group.status is RUNNING}
    found = set()
    for group in groups:
        if group.ready and group.status is not RUNNING and group.num_seats == 1:
            rich = [one for name, one in last.items() if held[name] - one.num_seats > held[group.account]]
            if rich:
                found.add(group.account)
    return found


def held_seats(groups: list[SequenceGroup]) -> Counter[str]:
    """The seats that each account holds."""
    held: Counter[str] = Counter()
    for group in groups:
        if group.status is RUNNING:
            held[group.account] += group.num_seats
    return held
