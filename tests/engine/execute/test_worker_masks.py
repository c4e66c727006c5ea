"""What the engine does when the process that finds masks is slow, or says things late.

The process is played by the test, so that everything happens in a known order.
"""

from __future__ import annotations

import pytest

from app.contract.grammar import Constraint
from app.contract.sampling_params import SamplingParams
from app.engine.execute import worker_masks
from app.engine.execute.masks import AnswerEnd
from app.engine.schedule.row_sampling import RowSampling
from app.engine.schedule.step_plan import NO_ALLOWED_TOKEN, RowStart
from app.text.grammar.children.mask_messages import Ready, Took, Turn
from tests.engine.execute.mask_setting import Setting, grammar, silent
from tests.text.grammar.children.scripted_process import ScriptedProcess


def test_without_a_grammar_there_is_no_process(make):
    setting = make()
    sampling = RowSampling.of(SamplingParams())
    setting.masks.start(RowStart(1, 1, 0, sampling, (5,), ()))
    setting.fill(1)
    assert not setting.masks.has_constraints and not setting.masks.late() and not setting.masks.rows
    setting.masks.wait()
    setting.masks.end(1)
    setting.masks.release(1)
    assert setting.children.processes == [] and setting.workers.memory is None


def test_masks_are_those_of_the_sequences_regions(make):
    setting = make()
    setting.start(1)
    setting.start(2)
    setting.masks._remote.receive(lambda: all(each.is_ready for each in setting.masks._remote._sequences.values()))
    words = setting.masks._remote.masks()
    words[setting.masks._remote._sequences[1].region] = [1 << 7, 0, 0]
    words[setting.masks._remote._sequences[2].region] = [0, 1 << 1, 0]
    setting.fill(2, 1)
    found = [setting.masks.allowed(sample).nonzero().flatten().tolist() for sample in (0, 1)]
    assert found == [[33], [7]]


def test_a_sequence_that_begins_again_is_not_answered_for_the_old_one(make):
    """After a faulty step the scheduler begins it with fewer tokens, while its old mask is still being made."""
    setting = make()
    setting.start(1)
    setting.fill(1)
    old = setting.number(1)
    setting.process.holds.add(old)
    setting.accept([3])
    setting.start(1)  # without the token
    new = setting.number(1)
    setting.fill(1)
    assert new != old and setting.masks._remote._sequences[1].tokens == []
    setting.process.reply(ready=(Ready(old, 1, False, None, ()),))
    assert setting.accept([4]).failures == {}
    assert setting.masks._remote._sequences[1].tokens == [4] and setting.masks._remote._regions.num_free == 15


def test_an_ended_sequence_keeps_its_region_until_its_mask_is_made(make):
    setting = make(num_sequences=2)
    setting.start(1)
    setting.fill(1)
    number = setting.number(1)
    setting.process.holds.add(number)
    setting.accept([3])
    setting.masks.end(1)
    setting.masks.end(1)
    assert setting.masks._remote._regions.num_free == 1 and setting.process.turns[-1].ends == (number,)
    setting.process.reply(ready=(Ready(number, 1, False, None, ()),))
    setting.masks._remote.read(0.0)
    assert sorted(setting.masks._remote._regions._free) == [0, 1]


def test_an_end_without_a_process_frees_the_region_at_once(make):
    setting = make(num_sequences=2)
    setting.children.can_fork = False
    setting.start(1)
    setting.masks.end(1)
    assert sorted(setting.masks._remote._regions._free) == [0, 1] and not setting.masks._remote._ending


def test_more_sequences_than_regions(make):
    """Those without a row give theirs away, one after the other, and get another one when they return."""
    setting = make(num_sequences=3)
    for number in range(1, 10):
        setting.start(1, number)
        setting.fill(1)
        setting.accept([number])
    setting.masks._remote.receive(lambda: not setting.masks._remote.late)
    held = [each.region for each in setting.masks._remote._sequences.values() if each.region >= 0]
    assert sorted(held) == [0, 1, 2]
    for number in range(1, 10):
        setting.start(1, number, (number,))
        setting.fill(1)
        assert setting.masks._remote._sequences[number].region >= 0
    assert len(setting.process.tokens) == 9 and all(len(turn.starts) <= 1 for turn in setting.process.turns)
    assert sum(len(turn.starts) for turn in setting.process.turns) == 9, "each keeps its place in the process"


def test_a_sequence_without_a_region_begins_again_without_one(make):
    setting = make(num_sequences=1)
    setting.start(1)
    setting.step(1)
    setting.masks._remote.receive(lambda: not setting.masks._remote.late)
    setting.start(1, 2)
    setting.fill(1)
    setting.process.end()
    setting.accept([7])
    regions = {start.sequence_id: start.region for turn in setting.process.turns for start in turn.starts}
    assert regions == {setting.number(1): -1, setting.number(2): -1}
    assert [take.region for turn in setting.process.turns for take in turn.takes] == [0], "it had a mask"
    setting.masks._remote.receive(lambda: not setting.masks._remote.late)
    setting.start(1, 1, (3,))
    setting.fill(1)
    assert setting.masks._remote._sequences[1].region == 0


def test_a_region_is_waited_for_where_none_is_free(make):
    """All sequences without a row wait for masks: the first that is ready gives its region away."""
    setting = make(num_sequences=1)
    setting.start(1)
    setting.fill(1)
    number = setting.number(1)
    setting.process.holds.add(number)
    setting.accept([3])
    setting.process.reply(ready=(Ready(number, 1, False, None, ()),))
    setting.start(1, 2)
    assert setting.masks._remote._sequences[2].region == 0 and setting.masks._remote._sequences[1].region == -1


def test_a_late_sequence_sits_out_until_its_mask_is_there(make):
    setting = make()
    setting.start(1)
    setting.start(2)
    setting.fill(1, 2)
    setting.process.holds.add(setting.number(1))
    setting.accept([3, 3])
    setting.now += 1.0
    assert setting.late() == {"g1"} and setting.masks.forced(1) == ()
    assert setting.step(2).failures == {}
    setting.now += 1.0
    assert setting.late() == {"g1"}
    setting.process.holds.clear()
    setting.process.find(setting.number(1))
    setting.masks.wait()
    assert setting.late() == set()


def test_a_step_waits_for_masks_of_the_last_step_only(make):
    """One that is late for long holds up nobody: the clock stands still, so the wait would never end."""
    setting = make()
    setting.start(1)
    setting.start(2)
    setting.fill(1, 2)
    setting.process.holds.add(setting.number(1))
    setting.accept([3, 3])
    setting.now += worker_masks.WAIT_S
    assert setting.late() == {"g1"}
    setting.step(2)
    assert setting.late() == {"g1"}


def test_a_failure_of_the_next_mask_costs_no_token(make):
    """It may be known before the step is, or later: the answer has the same tokens."""

    def fail_early(process: ScriptedProcess, turn: Turn) -> None:
        if turn.takes:
            number = turn.takes[0].sequence_id
            process.reply(took=(Took(number, 1, False, None),), ready=(Ready(number, 1, False, "Too deep", ()),))
        else:
            process.answer(turn)

    setting = make(fail_early)
    setting.start(1)
    assert setting.step(1) == ([3], [None], {})
    assert setting.late() == set()
    setting.fill(1)
    assert not setting.masks.allowed(0).any()
    assert setting.accept([NO_ALLOWED_TOKEN]).failures == {1: "Too deep"}


def test_an_answer_whose_end_is_known_late_ends_after_its_step(make):
    setting = make()
    setting.start(1)
    setting.start(2)
    setting.fill(1, 2)
    setting.process._play = silent(setting, "takes")
    assert setting.accept([3, 4]) == ([3, 4], [None, None], {})
    assert setting.late() == {"g1", "g2"} and not setting.masks.take_ends()
    setting.process.reply(took=(Took(setting.number(1), 1, True, None), Took(setting.number(2), 1, False, None)))
    setting.process.reply(ready=(Ready(setting.number(2), 1, False, None, ()),))
    setting.masks.wait()
    assert setting.late() == {"g1"}, "it takes part in no other step"
    assert setting.masks.take_ends() == [AnswerEnd(1, 1, True)] and not setting.masks.take_ends()
    setting.masks.end(1)
    assert setting.masks._remote._regions.num_free == 15


@pytest.mark.parametrize("is_complete", [True, False])
def test_an_answer_with_all_its_tokens_ends_when_it_is_known_why(make, is_complete: bool):
    setting = make()
    setting.start(1, max_tokens=2)
    setting.step(1)
    assert setting.ended == []
    setting.fill(1)
    setting.process._play = silent(setting, "takes")
    assert setting.accept([3]) == ([3], [None], {}) and setting.ended == []
    setting.process.reply(took=(Took(setting.number(1), 1, is_complete, None),))
    setting.masks.wait()
    assert setting.late() == {"g1"}, "it takes part in no other step"
    assert setting.masks.take_ends() == [AnswerEnd(1, 2, is_complete)] and not setting.masks.take_ends()


def test_an_answer_with_all_its_tokens_ends_although_its_grammar_has_failed(make):
    """At an earlier one of its last tokens, too: all of them were sampled."""
    setting = make()
    setting.start(1, max_tokens=3)
    setting.fill(1, drafts={1: [3, 4]})
    setting.process._play = silent(setting, "takes")
    setting.accept([3, 4, 5])
    setting.process.reply(took=(Took(setting.number(1), 1, False, "Too deep"),))
    setting.masks.wait()
    assert setting.masks.take_ends() == [AnswerEnd(1, 3, False)]


def test_a_failure_that_is_known_late_is_for_the_next_step(make):
    setting = make()
    setting.start(1)
    setting.fill(1)
    setting.process._play = silent(setting, "takes")
    assert setting.accept([3]).failures == {}
    setting.process.reply(took=(Took(setting.number(1), 1, False, "Too deep"),))
    setting.masks.wait()
    assert setting.late() == set()
    setting.fill(1)
    assert setting.accept([NO_ALLOWED_TOKEN]).failures == {1: "Too deep"}


def prepare(setting: Setting, number: int, *, tokens: tuple[int, ...] = (), is_next: bool = False) -> None:
    sampling = RowSampling.of(SamplingParams(), Constraint(grammar(f"g{number}")), "account")
    setting.masks.prepare(number, sampling, tokens, is_next=is_next)


def test_a_sequence_begins_before_it_has_a_row(make):
    setting = make()
    assert not setting.masks.has_mask(1, 0)
    prepare(setting, 1)
    assert not setting.masks.has_mask(1, 0)
    assert setting.late() == set() and setting.masks.has_mask(1, 0) and not setting.masks.has_mask(1, 1)
    setting.start(1)
    assert setting.step(1).failures == {}
    assert [len(turn.starts) for turn in setting.process.turns] == [1, 0]


def test_a_step_waits_little_for_sequences_that_begin(make):
    """Their grammars may have to be compiled, and they may be many."""
    setting = make()
    setting.start(1)
    setting.fill(1)
    setting.process._play = silent(setting, "starts")
    for number in range(2, 6):
        prepare(setting, number)
    assert setting.late() == {"g2", "g3", "g4", "g5"}
    assert setting.step(1).failures == {}
    assert worker_masks.START_WAIT_S < worker_masks.WAIT_S


def test_the_next_sequence_begins_although_others_have_taken_all_regions(make):
    """Half of them are kept for sequences with rows; what begins ahead gives way to the next one."""
    setting = make(num_sequences=4)
    for number in range(1, 10):
        prepare(setting, number)
    assert set(setting.masks._remote._sequences) == {1, 2}
    for number in range(3, 10):
        prepare(setting, number, is_next=True)
        setting.masks._remote.receive(lambda: not setting.masks._remote.late)
    assert [number for number in range(1, 10) if setting.masks.has_mask(number, 0)] == [6, 7, 8, 9]
    prepare(setting, 1, is_next=True)
    setting.masks._remote.receive(lambda: not setting.masks._remote.late)
    assert setting.masks.has_mask(1, 0) and sum(len(turn.starts) for turn in setting.process.turns) == 9


def test_a_sequence_that_has_lost_tokens_begins_again(make):
    """Its last step has failed after they were taken."""
    setting = make()
    prepare(setting, 1, tokens=(3, 4))
    setting.late()
    assert setting.masks.has_mask(1, 2) and not setting.masks.has_mask(1, 1)
    old = setting.number(1)
    prepare(setting, 1, tokens=(3,), is_next=True)
    setting.late()
    assert setting.masks.has_mask(1, 1) and setting.number(1) != old
