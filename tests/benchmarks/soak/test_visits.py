"""Visits: what a kill may end, what is wrong, and how they are counted."""

import random
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.resuming.answer_reader import Broken
from benchmarks.resuming.asked import SSE, Asked
from benchmarks.resuming.told import WrongAnswer
from benchmarks.soak import visits
from benchmarks.soak.crowd import Crowd
from benchmarks.soak.visits import Behaviour, End, Visit, Visitor

ASKED = Asked("greedy 0", SSE, {})


class Server:
    """Stands for the server, which is killed when a test says so."""

    num_kills = 0
    target = None

    async def alive(self) -> int:
        return self.num_kills


async def visit(
    monkeypatch: pytest.MonkeyPatch, error: Exception | None, *, may_meet_kill: bool, killed: bool
) -> Visit:
    server = Server()

    async def behave(visitor: Visitor, asked: Asked) -> End:
        server.num_kills += killed
        if error is not None:
            raise error
        return End.GOOD

    monkeypatch.setattr(visits, "BEHAVIOURS", {"reads": Behaviour(behave, 1, may_meet_kill)})
    arguments: Any = (server, SimpleNamespace(), random.Random(1))
    return await Visitor(*arguments).visit(ASKED)


@pytest.mark.parametrize(
    ("error", "may_meet_kill", "killed", "end"),
    [
        (None, True, True, End.GOOD),
        (Broken("it broke"), True, True, End.MET),
        (Broken("it broke"), True, False, End.FAILED),
        (Broken("it broke"), False, True, End.FAILED),
        (ConnectionResetError(), True, True, End.MET),
        (WrongAnswer("another text"), True, True, End.WRONG),
    ],
)
async def test_only_a_plain_answer_may_be_ended_by_a_kill(monkeypatch, error, may_meet_kill, killed, end):
    assert (await visit(monkeypatch, error, may_meet_kill=may_meet_kill, killed=killed)).end is end


async def test_what_was_met_by_a_kill_or_left_counts_neither_way():
    ends = iter([End.GOOD] * 3 + [End.MET, End.LEFT, End.REFUSED, End.WRONG])

    class Visits:
        async def visit(self, asked: Asked) -> Visit:
            end = next(ends)
            if end is End.WRONG:
                crowd._is_resting = True
            return Visit("reads", asked, end, "another text")

    found: Any = Visits()
    crowd = Crowd(found, [ASKED])
    crowd.start(1)
    await crowd._tasks[0]
    assert crowd.availability == 0.75
    assert crowd.faults == ["greedy 0 over SSE, reads: wrong: another text"]
