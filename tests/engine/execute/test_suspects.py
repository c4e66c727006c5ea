"""Whom the engine blames for the end of the process that finds masks, where several may be the reason for it."""

from __future__ import annotations

import signal

import pytest

from app.engine.execute.remote_sequences import TOO_COSTLY, TOO_LARGE
from app.text.grammar.children.mask_messages import Ready, Turn
from tests.engine.execute.mask_setting import holding
from tests.text.grammar.children.scripted_process import ScriptedProcess


def test_suspects_are_tried_one_after_the_other_until_one_is_there_again(make):
    """Where memory has ended the process nothing says who it was for; others are worked on at the same time."""
    setting = make()
    setting.begin(1, 2, 3, 4)
    setting.process.holds |= {setting.number(number) for number in (2, 3)}
    setting.accept([3, 3, 3, 3])
    setting.note(0, setting.number(2), setting.number(3))
    setting.children._plays.append(holding({2, 3}))
    setting.process.end()
    setting.now += 1.0
    assert setting.late() == {"g2", "g3"}
    (guilty,) = setting.process.tokens
    setting.note(0, guilty)
    setting.process.end()
    setting.masks._remote.receive(lambda: not setting.masks._remote.late)
    assert {each.id: each.failure for each in setting.masks._remote._sequences.values()} == {
        1: None, 2: None, 3: None, 4: None, guilty: TOO_LARGE
    }  # fmt: skip
    assert setting.rejection(guilty) is not None and guilty not in setting.process.tokens


@pytest.mark.parametrize(
    ("end", "num_starts", "failure"), [(signal.SIGPROF, 1, TOO_COSTLY), (signal.SIGKILL, 2, TOO_LARGE)]
)
def test_the_only_sequence_at_work_is_tried_again_unless_the_systems_timer_has_ended_the_process(
    make, end: int, num_starts: int, failure: str
):
    """A grammar that keeps the lock costs everybody's masks half a second, and not twice that."""
    setting = make()
    setting.begin(1, 2)
    bad = setting.number(1)
    setting.process.holds.add(bad)
    setting.accept([3, 3])

    def play(process: ScriptedProcess, turn: Turn) -> None:
        """It ends wherever the bad one begins again."""
        if any(start.sequence_id == bad for start in turn.starts):
            setting.note(0, bad, end=end)
            process.end()
        else:
            process.answer(turn)

    setting.children._plays += [play] * 2
    setting.note(0, bad, end=end)
    setting.process.end()
    setting.masks._remote.receive(lambda: not setting.masks._remote.late)
    processes = setting.children.processes
    starts = [start.sequence_id for each in processes for turn in each.turns for start in turn.starts]
    assert starts.count(bad) == num_starts and len(processes) == 1 + num_starts
    assert setting.failures() == {1: failure} and setting.rejection(1) == (f"{failure}.", None, True)
    assert setting.rejection(2) is None and setting.process.tokens[setting.number(2)] == (3,)


def test_two_sequences_at_work_are_tried_alone_although_the_systems_timer_has_ended_the_process(make):
    """One of them may have done nothing but wait for the other one."""
    setting = make()
    setting.begin(1, 2)
    bad, good = setting.number(1), setting.number(2)
    setting.process.holds |= {bad, good}
    setting.accept([3, 3])

    def play(process: ScriptedProcess, turn: Turn) -> None:
        """It ends where the bad one begins, with all noted that began."""
        if any(start.sequence_id == bad for start in turn.starts):
            setting.note(0, *process.tokens, bad, end=signal.SIGPROF)
            process.end()
        else:
            process.answer(turn)

    setting.children._plays += [play] * 2
    setting.note(0, good, bad, end=signal.SIGPROF)
    setting.process.end()
    setting.masks._remote.receive(lambda: not setting.masks._remote.late)
    assert setting.failures() == {1: TOO_COSTLY} and setting.rejection(2) is None


def test_nobody_is_blamed_for_what_others_do_beside(make):
    """Two sequences end processes in turn, while a good one is worked on: it is alone when it is tried, and cleared."""
    setting = make()
    setting.begin(1, 2, 3)
    setting.process.holds |= {1, 2, 3}
    setting.accept([3, 3, 3])
    setting.note(0, 1, 2)
    ending = {2, 3}

    def play(process: ScriptedProcess, turn: Turn) -> None:
        """It ends at once where a guilty one begins, with all noted that begin."""
        begun = {start.sequence_id for start in turn.starts}
        if begun & ending:
            setting.note(0, *process.tokens, *begun)
            process.end()
        else:
            process.answer(turn)

    setting.children._plays += [play] * 5
    setting.process.end()
    setting.masks._remote.receive(lambda: not setting.masks._remote.late)
    assert setting.failures() == {2: TOO_LARGE, 3: TOO_LARGE}
    assert setting.rejection(1) is None


def test_a_new_sequence_begins_when_all_suspects_are_cleared(make):
    setting = make()
    setting.start(1)
    setting.fill(1)
    setting.process.holds.add(1)
    setting.accept([3])
    setting.note(0, 1)
    setting.children._plays.append(holding({1}))
    setting.process.end()
    setting.now += 1.0
    assert setting.late() == {"g1"}
    setting.start(2)
    assert set(setting.process.tokens) == {1}
    setting.process.reply(ready=(Ready(1, 1, False, None, ()),))
    setting.masks._remote.read(0.0)
    assert set(setting.process.tokens) == {1, 2}


def test_the_next_suspect_begins_when_the_first_is_cleared_or_has_ended(make):
    setting = make()
    for number in (1, 2, 3):
        setting.start(number)
    setting.fill(1, 2, 3)
    setting.process.holds |= {1, 2, 3}
    setting.accept([3, 3, 3])
    setting.note(0, 1, 2, 3)
    setting.children._plays.append(holding({1, 2, 3}))
    setting.process.end()
    setting.now += 1.0
    assert setting.late() == {"g1", "g2", "g3"}
    (first,) = setting.process.tokens
    setting.masks.end(first)
    (second,) = setting.process.tokens
    setting.process.reply(ready=(Ready(second, 1, False, None, ()),))
    setting.masks._remote.read(0.0)
    (third,) = set(setting.process.tokens) - {second}
    setting.process.reply(ready=(Ready(third, 1, False, None, ()),))
    assert setting.late() == set() and {first, second, third} == {1, 2, 3}


def test_a_suspect_is_not_cleared_before_its_tokens_are_taken(make):
    setting = make(lambda process, turn: process.end() if turn.takes else process.answer(turn))
    setting.start(1)
    setting.start(2)
    setting.fill(1, 2)
    setting.note(0, setting.number(1), setting.number(2))

    def beginning(process: ScriptedProcess, turn: Turn) -> None:
        """Its first sequence has begun, and the process ends at its tokens."""
        process.tokens |= {start.sequence_id: start.token_ids for start in turn.starts}
        for start in turn.starts:
            process.reply(ready=(Ready(start.sequence_id, 0, False, None, ()),))
            setting.note(0, start.sequence_id)
        process.end()

    setting.children._plays.append(beginning)
    setting.accept([3, 3])
    assert list(setting.failures().values()) == [TOO_LARGE]
