"""Masks behind draft tokens, forced ones and others: asked for, or there before, or too late."""

from __future__ import annotations

import msgspec
import pytest

from app.engine.execute.masks import NOTHING_LEFT, AnswerEnd
from app.engine.schedule.speculation.forced_tokens import MAX_FORCED
from app.engine.schedule.step_plan import NO_ALLOWED_TOKEN, NO_TOKEN, NOT_SAMPLED
from app.text.grammar.children.mask_messages import MAX_AHEAD, Drafted, Ready, Took, Turn
from tests.engine.execute.mask_setting import NUM_SAMPLES, silent
from tests.text.grammar.children.scripted_process import ScriptedProcess


def test_sampled_tokens_behind_the_end_do_not_count(make):
    def complete(process: ScriptedProcess, turn: Turn) -> None:
        if turn.takes:
            process.reply(took=(Took(turn.takes[0].sequence_id, 2, True, None),))
        else:
            process.answer(turn)

    setting = make(complete)
    setting.start(1)
    setting.fill(1, drafts={1: [3, 4]})
    setting.accept([3, 4, 5])
    assert setting.ended == [AnswerEnd(1, 2, True)] and setting.late() == set()


@pytest.mark.parametrize(
    ("sampled", "failure", "taken"),
    [
        ([3, 4, NO_ALLOWED_TOKEN], NOTHING_LEFT, [3, 4]),
        ([3, NO_ALLOWED_TOKEN, 5], NOTHING_LEFT, [3]),
        ([NO_ALLOWED_TOKEN, 4, 5], NOTHING_LEFT, []),
        ([3, 9, NO_ALLOWED_TOKEN], None, [3, 9]),
        ([3, NO_TOKEN, 5], None, [3]),
        ([NO_TOKEN, NO_TOKEN, NO_TOKEN], None, []),
    ],
)
def test_samples_count_while_they_equal_the_draft(make, sampled: list[int], failure: str | None, taken: list[int]):
    setting = make()
    setting.start(1)
    setting.fill(1, drafts={1: [3, 4]})
    accepted = setting.accept(list(sampled))
    assert accepted.token_ids == sampled and accepted.failures.get(1) == failure
    assert setting.masks._remote._sequences[1].tokens == taken


def test_samples_without_the_masks_behind_draft_tokens_do_not_count(make):
    """They come later, into the same memory, so until then there are no others."""
    setting = make()
    setting.start(1)
    setting.start(2)
    setting.fill(1, 2)
    setting.process._play = silent(setting, "drafts")
    for tokens in ([], [3]):
        setting.fill(1, drafts={1: [3, 4]})
        assert setting.accept([3, 4, 5]) == ([3, NOT_SAMPLED, 5], [None, False, False], {})
        setting.masks._remote.receive(lambda: not setting.masks._remote.late)
        assert setting.masks._remote._sequences[1].tokens == [*tokens, 3]
    assert sum(len(turn.drafts) for turn in setting.process.turns) == 1
    setting.process.reply(drafted=(Drafted(setting.number(1), 2),))
    setting.masks._remote.read(0.0)
    setting.process._play = None
    setting.fill(1, drafts={1: [3, 4]})
    assert setting.accept([3, 4, 5]).token_ids == [3, 4, 5]


def test_an_answer_ends_with_the_draft_token_that_completes_it(make):
    """That is known before its tokens are taken."""
    setting = make()
    setting.start(1)
    setting.fill(1)

    def play(process: ScriptedProcess, turn: Turn) -> None:
        process.answer(msgspec.structs.replace(turn, takes=(), drafts=()))
        setting.now += len(turn.takes)
        if turn.drafts:
            process.reply(drafted=(Drafted(turn.drafts[0].sequence_id, 1, True),))

    setting.process._play = play
    setting.fill(1, drafts={1: [3, 4, 5]})
    assert setting.accept([3, 4, 5, 6]) == ([3, 4, 5, 6], [False, True, False, False], {})
    setting.masks.release(1)
    setting.masks.end(1)
    setting.start(1)
    setting.fill(1, drafts={1: [3, 4, 5]})
    assert setting.accept([3, 9, 5, 6]).ends == [False, None, False, False]


def forcing(process: ScriptedProcess, turn: Turn) -> None:
    """A process that says of each sequence that has taken a token that 3 and 4 must follow, and the answer ends."""
    process.answer(msgspec.structs.replace(turn, takes=()))
    for take in turn.takes:
        number, count = take.sequence_id, len(take.token_ids)
        process.tokens[number] += take.token_ids
        ahead = Drafted(number, 1, True) if take.ahead >= 0 else None
        ready = Ready(number, len(process.tokens[number]), False, None, (3, 4), ahead)
        process.reply(took=(Took(number, count, False, None),), ready=(ready,))


def test_masks_behind_forced_tokens_are_there_before_they_are_draft_tokens(make):
    setting = make(forcing)
    setting.start(1)
    setting.start(2)
    setting.step(1, 2)
    assert setting.late() == set() and list(setting.masks.forced(1)) == [3, 4]
    ahead = [take.ahead for turn in setting.process.turns for take in turn.takes]
    assert ahead[1] - ahead[0] == MAX_AHEAD and ahead[0] == 16 + NUM_SAMPLES
    setting.masks._remote.masks()[ahead[0]] = [1 << 4, 0, 0]
    setting.fill(1, 2, drafts={1: [3, 4], 2: [3]})
    assert setting.masks.allowed(1).nonzero().flatten().tolist() == [4]
    assert setting.accept([3, 4, 9, 3, 5]) == ([3, 4, 9, 3, 5], [False, True, False, False, None], {})
    assert not any(turn.drafts for turn in setting.process.turns)


def test_there_is_a_mask_behind_each_token_that_a_step_may_force():
    """One sampled behind another without its mask would count."""
    assert MAX_AHEAD >= MAX_FORCED


def test_other_draft_tokens_than_forced_ones_have_masks_of_their_own(make):
    setting = make(forcing)
    setting.start(1)
    setting.step(1)
    setting.late()
    setting.fill(1, drafts={1: [3, 5]})
    assert setting.accept([3, 5, 6]) == ([3, 5, 6], [False, False, None], {})
    assert [draft.token_ids for turn in setting.process.turns for draft in turn.drafts] == [(3, 5)]


def test_a_row_has_no_masks_ahead_while_those_of_another_sequence_are_written(make):
    """They would go to the same memory."""
    setting = make()
    setting.start(1, 1)
    setting.fill(1)
    setting.process._play = silent(setting, "takes")
    setting.accept([3])
    setting.masks.release(1)
    setting.process._play = None
    setting.start(1, 2)
    setting.masks._remote.receive(lambda: setting.masks.has_mask(2, 0))
    setting.fill_ids((1, 2))
    setting.accept([3])
    assert [take.ahead >= 0 for turn in setting.process.turns for take in turn.takes] == [True, False]
    setting.process.reply(took=(Took(setting.number(1), 1, False, None),))
    setting.process.reply(ready=(Ready(setting.number(1), 1, False, None, ()),))
    setting.masks._remote.receive(lambda: not setting.masks._remote.late)
    setting.fill_ids((1, 2))
    setting.accept([3])
    assert [take.ahead >= 0 for turn in setting.process.turns for take in turn.takes][-1]


def test_steps_with_prompts_ask_for_no_masks_ahead(make):
    """They have no draft tokens."""
    setting = make()
    setting.start(1)
    setting.fill_ids((1, 1), num_prompt_tokens=5)
    setting.accept([3])
    assert [take.ahead for turn in setting.process.turns for take in turn.takes] == [-1]
