"""S12: under `fair` seats move to the accounts with fewer seats, within a number of steps, and only if needed."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from app.engine.schedule.group import SequenceGroup
from app.engine.schedule.sequence import FINISHED, PAUSED, RUNNING
from app.engine.schedule.shares import TURN_STEPS

if TYPE_CHECKING:
    from tests.simulation.invariants import Snapshot
    from tests.simulation.simulation import Simulation

# An account gets the next free seat, but its request also needs blocks, and time besides the prompts of others.
MAX_SEAT_WAIT = 64  # steps


class SeatWaits:
    """Counts the steps that accounts wait for a seat that another account could give up."""

    def __init__(self) -> None:
        self.num_steps: Counter[str] = Counter()

    def check(self, simulation: Simulation) -> None:
        """Check at the end of a step that no account waits too long."""
        poor = set() if simulation.scheduler.preemption.allowed is not None else accounts_with_too_few_seats(simulation)
        self.num_steps = Counter({account: self.num_steps[account] + 1 for account in poor})
        for account, number in self.num_steps.items():
            assert number <= MAX_SEAT_WAIT, f"account {account!r} has had too few seats for {number} steps"


def s12_seats_move_to_accounts_with_fewer(before: list[Snapshot]) -> None:
    """S12: a group gives up its seat only at the end of its turn, or if one waits whose account has no more seats."""
    held = held_seats([one.group for one in before])
    waiting = [one.group for one in before if one.group.ready and one.group.status not in (RUNNING, FINISHED)]
    for one in before:
        if one.status is RUNNING and one.group.status is PAUSED and one.group.ready:
            others = [held[group.account] for group in waiting if group.account != one.group.account]
            gained = [held[group.account] for group in (each.group for each in before if each.status is not RUNNING)]
            assert others or gained, "a seat was given up without need"
            assert has_had_its_turn(one.group, before) or held[one.group.account] >= min(others + gained), (
                f"{one.client.id} gave a seat to an account with more seats"
            )
            assert not one.is_protected, f"{one.client.id} gave up its seat before it gained a token"


def has_had_its_turn(group: SequenceGroup, before: list[Snapshot]) -> bool:
    """Whether a group of several choices had its seats for long enough to give way to one that runs since."""
    began = [one.group.turn_since for one in before if one.status is not RUNNING and one.group.status is RUNNING]
    return group.num_seats > 1 and any(step - group.turn_since >= TURN_STEPS for step in began)


def accounts_with_too_few_seats(simulation: Simulation) -> set[str]:
    """The accounts with a waiting request and fewer seats than another account would have after giving up one."""
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
    """The number of seats of each account."""
    held: Counter[str] = Counter()
    for group in groups:
        if group.status is RUNNING:
            held[group.account] += group.num_seats
    return held
