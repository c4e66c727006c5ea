"""What the engine does when the process that finds masks is slow, ends, or says things late.

The process is played by the test, so that everything happens in a known order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import cast

import numpy as np
import pytest

from app.contract.grammar import Constraint, Grammar, GrammarKind
from app.contract.sampling_params import SamplingParams
from app.engine.execute import remote_sequences, worker_masks
from app.engine.execute.local_masks import LocalMasks
from app.engine.execute.masks import NOTHING_LEFT, Accepted, DrawMasks, MaskBuffers
from app.engine.execute.remote_sequences import MAX_ENDS, MISSING_S, NO_PROCESS, TOO_COSTLY, TOO_LARGE
from app.engine.execute.worker_masks import WorkerMasks
from app.engine.schedule.row_sampling import RowSampling
from app.engine.schedule.step_plan import NO_ALLOWED_TOKEN, NO_TOKEN, Chunk, Chunks, RowStart, SampleRow, StepPlan
from app.text.grammar.cache import GrammarCache, Rejection
from app.text.grammar.children.fork_client import ForkClient
from app.text.grammar.children.mask_messages import Ready, Setup, Took, Turn
from app.text.grammar.children.mask_workers import MaskWorkers
from app.text.grammar.vocabulary import mask_words
from tests.text.grammar.children.scripted_process import ScriptedChildren, ScriptedProcess

VOCAB, NUM_DRAWS = 64, 8
WORDS = mask_words(VOCAB)
Play = Callable[[ScriptedProcess, Turn], None]


def grammar(name: str) -> Grammar:
    return Grammar(GrammarKind.REGEX, name)


class Setting:
    """Masks of `num_sequences` regions, and what they say of steps. The clock stands still until a test moves it."""

    def __init__(self, *plays: Play | None, num_sequences: int = 16) -> None:
        self.now = 100.0
        self.children = ScriptedChildren(*plays)
        self.cache = GrammarCache(is_served=True)
        setup = Setup(1, WORDS, num_sequences + NUM_DRAWS, ())
        self.workers = MaskWorkers(lambda: cast(ForkClient, self.children), setup)
        draws = DrawMasks(MaskBuffers.allocate(NUM_DRAWS, VOCAB), VOCAB)
        local = LocalMasks(self.cache, draws, (), 1)
        self.masks = WorkerMasks(self.workers, local, draws, self.cache, num_sequences, lambda: self.now)

    @property
    def process(self) -> ScriptedProcess:
        """The one that runs."""
        return self.children.processes[-1]

    def start(self, row: int, sequence_id: int | None = None, output: tuple[int, ...] = ()) -> None:
        """Begin a sequence in a row; its grammar and its account are its own."""
        number = row if sequence_id is None else sequence_id
        text = grammar(f"g{number}")
        sampling = RowSampling.of(SamplingParams(), Constraint(text), f"account {number}")
        self.masks.start(RowStart(row, number, 0, sampling, (5,), output))

    def fill(self, *rows: int, guesses: dict[int, list[int]] | None = None) -> None:
        """Make the masks of a step over rows, whose sequences have the rows' ids."""
        guesses = guesses or {}
        chunks = [Chunk(row, row, 0, (9, *guesses.get(row, ()))) for row in rows]
        sampled = [SampleRow(row, row) for row in rows for _ in range(1 + len(guesses.get(row, ())))]
        self.masks.fill(StepPlan(1, Chunks.of(chunks), tuple(range(len(sampled))), tuple(sampled)))

    def step(self, *rows: int, token: int = 3) -> Accepted:
        """Compute a step in which each row draws the same token."""
        self.fill(*rows)
        return self.masks.accept([token] * len(rows))

    def late(self) -> set[str]:
        """The grammars that are late."""
        return {each.source for each in self.masks.late()}

    def number(self, sequence_id: int) -> int:
        """What the process knows a sequence by."""
        return self.masks._remote._sequences[sequence_id].number

    def note(self, culprit: int = 0, *suspects: int) -> None:
        """Note who is worked on, as the process does."""
        assert self.workers.memory is not None
        self.workers.memory.notes[0] = culprit
        for index, number in enumerate(suspects, 1):
            self.workers.memory.notes[index] = number

    def accept_grammar(self, sequence_id: int) -> None:
        """Let the grammar of a sequence be known as one whose trial was good."""
        text = grammar(f"g{sequence_id}")
        self.cache.accept(text, text).release()

    def rejection(self, sequence_id: int) -> Rejection | None:
        return self.cache._entries[grammar(f"g{sequence_id}")].rejection


@pytest.fixture
def make() -> Iterator[Callable[..., Setting]]:
    made: list[Setting] = []

    def make(*plays: Play | None, **fields: int) -> Setting:
        made.append(Setting(*plays, **fields))
        return made[-1]

    yield make
    for each in made:
        each.workers.close()
        each.children.close()


def test_without_a_grammar_there_is_no_process(make):
    setting = make()
    sampling = RowSampling.of(SamplingParams())
    setting.masks.start(RowStart(1, 1, 0, sampling, (5,), ()))
    setting.fill(1)
    assert not setting.masks.has_constraints and setting.masks.late() == () and not setting.masks.rows
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
    found = [setting.masks.allowed(draw).nonzero().flatten().tolist() for draw in (0, 1)]
    assert found == [[33], [7]]


def test_a_sequence_that_begins_again_is_not_answered_for_the_old_one(make):
    """After a faulty step the scheduler begins it with fewer tokens, while its old mask is still being made."""
    setting = make()
    setting.start(1)
    setting.fill(1)
    old = setting.number(1)
    setting.process.holds.add(old)
    setting.masks.accept([3])
    setting.start(1)  # without the token
    new = setting.number(1)
    setting.fill(1)
    assert new != old and setting.masks._remote._sequences[1].tokens == []
    setting.process.reply(ready=(Ready(old, 1, False, None, ()),))
    assert setting.masks.accept([4]).failures == {}
    assert setting.masks._remote._sequences[1].tokens == [4] and len(setting.masks._remote._regions) == 15


def test_an_ended_sequence_keeps_its_region_until_its_mask_is_made(make):
    setting = make(num_sequences=2)
    setting.start(1)
    setting.fill(1)
    number = setting.number(1)
    setting.process.holds.add(number)
    setting.masks.accept([3])
    setting.masks.end(1)
    setting.masks.end(1)
    assert len(setting.masks._remote._regions) == 1 and setting.process.turns[-1].ends == (number,)
    setting.process.reply(ready=(Ready(number, 1, False, None, ()),))
    setting.masks._remote.read(0.0)
    assert sorted(setting.masks._remote._regions) == [0, 1]


def test_an_end_without_a_process_frees_the_region_at_once(make):
    setting = make(num_sequences=2)
    setting.children.can_fork = False
    setting.start(1)
    setting.masks.end(1)
    assert sorted(setting.masks._remote._regions) == [0, 1] and not setting.masks._remote._ending


def test_more_sequences_than_regions(make):
    """Those without a row give theirs away, one after the other, and get another one when they return."""
    setting = make(num_sequences=3)
    for number in range(1, 10):
        setting.start(1, number)
        setting.fill(1)
        setting.masks.accept([number])
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
    setting.masks.accept([7])
    regions = {start.sequence_id: start.region for turn in setting.process.turns for start in turn.starts}
    assert regions == {setting.number(1): -1, setting.number(2): 0}
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
    setting.masks.accept([3])
    setting.process.reply(ready=(Ready(number, 1, False, None, ()),))
    setting.start(1, 2)
    assert setting.masks._remote._sequences[2].region == 0 and setting.masks._remote._sequences[1].region == -1


def test_a_late_sequence_sits_out_until_its_mask_is_there(make):
    setting = make()
    setting.start(1)
    setting.start(2)
    setting.fill(1, 2)
    setting.process.holds.add(setting.number(1))
    setting.masks.accept([3, 3])
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
    setting.masks.accept([3, 3])
    setting.now += worker_masks.WAIT_S
    assert setting.late() == {"g1"}
    setting.step(2)
    assert setting.late() == {"g1"}


def test_drawn_tokens_behind_the_end_are_no_failure(make):
    def complete(process: ScriptedProcess, turn: Turn) -> None:
        if turn.takes:
            process.reply(took=(Took(turn.takes[0].sequence_id, 2, True, None),))
        else:
            process.answer(turn)

    setting = make(complete)
    setting.start(1)
    setting.fill(1, guesses={1: [3, 4]})
    accepted = setting.masks.accept([3, 4, NO_ALLOWED_TOKEN])
    assert accepted == ([3, 4, NO_ALLOWED_TOKEN], [False, True, False], {})
    assert setting.late() == set()


@pytest.mark.parametrize(
    ("drawn", "failure", "taken"),
    [
        ([3, 4, NO_ALLOWED_TOKEN], NOTHING_LEFT, [3, 4]),
        ([3, NO_ALLOWED_TOKEN, 5], NOTHING_LEFT, [3]),
        ([NO_ALLOWED_TOKEN, 4, 5], NOTHING_LEFT, []),
        ([3, 9, NO_ALLOWED_TOKEN], None, [3, 9]),
        ([3, NO_TOKEN, 5], None, [3]),
        ([NO_TOKEN, NO_TOKEN, NO_TOKEN], None, []),
    ],
)
def test_draws_count_while_they_equal_the_draft(make, drawn: list[int], failure: str | None, taken: list[int]):
    setting = make()
    setting.start(1)
    setting.fill(1, guesses={1: [3, 4]})
    accepted = setting.masks.accept(list(drawn))
    assert accepted.token_ids == drawn and accepted.failures.get(1) == failure
    assert setting.masks._remote._sequences[1].tokens == taken


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
    assert setting.step(1) == ([3], [False], {})
    assert setting.late() == set()
    setting.fill(1)
    assert not setting.masks.allowed(0).any()
    assert setting.masks.accept([NO_ALLOWED_TOKEN]).failures == {1: "Too deep"}


# --- The process ends -------------------------------------------------------------------------------------------------


def holding(numbers: set[int]) -> Play:
    """A process that finds no masks of some sequences."""

    def play(process: ScriptedProcess, turn: Turn) -> None:
        process.holds |= numbers
        process.answer(turn)

    return play


def ends_at(kind: str) -> Play:
    """A process that ends when it is to do something for the first time."""

    def play(process: ScriptedProcess, turn: Turn) -> None:
        if getattr(turn, kind):
            process.end()
        else:
            process.answer(turn)

    return play


@pytest.mark.parametrize("kind", ["starts", "takes", "drafts"])
def test_nobody_fails_when_somebody_else_ends_the_process(make, kind: str):
    """At any moment: the next process begins with the tokens, and does what the last one has not done."""
    setting = make(ends_at(kind))
    setting.start(1)
    setting.start(2)
    setting.fill(1, 2, guesses={1: [3, 4]})
    accepted = setting.masks.accept([3, 4, 5, 6])
    assert accepted == ([3, 4, 5, 6], [False] * 4, {})
    assert setting.late() == set()
    assert len(setting.children.processes) == 2 and setting.workers.num_started == 2
    assert {1: setting.process.tokens[setting.number(1)], 2: setting.process.tokens[setting.number(2)]} == {
        1: (3, 4, 5), 2: (6,)
    }  # fmt: skip


def test_masks_are_copied_when_all_are_made_again(make):
    """The process ends while it makes those behind drafts; the other sequences' are being overwritten then."""
    setting = make(ends_at("drafts"), lambda process, turn: play(process, turn))
    copied: list[bool] = []

    def play(process: ScriptedProcess, turn: Turn) -> None:
        for start in turn.starts:
            if start.sequence_id == setting.number(2):
                process.holds.add(start.sequence_id)
        process.answer(turn)
        if turn.drafts:
            process.holds.clear()
            setting.masks._remote.masks()[setting.masks._remote._sequences[2].region] = [1 << 9, 0, 0]
            process.find(setting.number(2)) if setting.number(2) in process.tokens else copied.append(False)

    setting.start(2)
    setting.start(1)
    setting.fill(1, 2, guesses={1: [3]})
    assert setting.masks._remote._sequences[2].is_ready
    assert setting.masks.allowed(2).nonzero().flatten().tolist() == [9] and not copied


def test_the_sequence_that_took_too_long_fails_and_its_grammar_is_rejected(make):
    setting = make()
    for number in (1, 2, 3):
        setting.accept_grammar(number)
        setting.start(number)
    setting.fill(1, 2, 3)
    setting.process.holds.add(setting.number(2))
    setting.masks.accept([3, 3, 3])
    setting.note(setting.number(2), setting.number(2), setting.number(3))
    setting.process.end()
    setting.now += 1.0
    assert setting.late() == set()
    assert setting.masks._remote._sequences[2].failure == TOO_COSTLY
    assert setting.rejection(2) == (f"{TOO_COSTLY}.", None, True)
    assert setting.rejection(1) is setting.rejection(3) is None
    setting.fill(1, 2, 3)
    assert not setting.masks.allowed(1).any()
    assert setting.masks.accept([4, NO_ALLOWED_TOKEN, 4]).failures == {2: TOO_COSTLY}
    assert {number: setting.process.tokens.get(number) for number in (1, 2, 3)} == {1: (3, 4), 2: None, 3: (3, 4)}
    assert setting.cache.expensive.seconds_left("account 2") == setting.cache.expensive.seconds_left("account 1")
    for _ in range(3):
        setting.cache.condemn(None, TOO_COSTLY, "account 2")
    assert setting.cache.expensive.seconds_left("account 2") > 0 == setting.cache.expensive.seconds_left("account 1")


def test_a_grammar_is_rejected_although_its_request_was_aborted(make):
    """Else nobody would be charged for the end of the process."""
    setting = make()
    setting.accept_grammar(1)
    setting.start(1)
    setting.start(2)
    setting.fill(1, 2)
    number = setting.number(1)
    setting.process.holds.add(number)
    setting.masks.accept([3, 3])
    setting.masks.end(1)
    setting.note(number, number)
    setting.process.end()
    assert setting.step(2).failures == {}
    assert setting.rejection(1) is not None and len(setting.masks._remote._regions) == 15


def test_suspects_are_tried_one_after_the_other_until_one_is_there_again(make):
    """Where memory has ended the process nothing says who it was for; others are worked on at the same time."""
    setting = make()
    for number in (1, 2, 3, 4):
        setting.accept_grammar(number)
        setting.start(number)
    setting.fill(1, 2, 3, 4)
    setting.process.holds |= {setting.number(number) for number in (2, 3)}
    setting.masks.accept([3, 3, 3, 3])
    setting.note(0, setting.number(2), setting.number(3))
    setting.children._plays.append(holding({2, 3}))
    setting.process.end()
    setting.now += 1.0
    assert setting.late() == {"g2", "g3"}
    begun = set(setting.process.tokens)
    assert len(begun) == 3 and {1, 4} < begun
    (guilty,) = begun - {1, 4}
    setting.note(0, guilty, 4)  # in company
    setting.process.end()
    setting.now += 1.0
    assert setting.late() == set()
    assert {each.id: each.failure for each in setting.masks._remote._sequences.values()} == {
        1: None, 2: None, 3: None, 4: None, guilty: TOO_LARGE
    }  # fmt: skip
    assert setting.rejection(guilty) is not None and guilty not in setting.process.tokens


def test_the_next_suspect_begins_when_the_first_is_cleared_or_has_ended(make):
    setting = make()
    for number in (1, 2, 3):
        setting.start(number)
    setting.fill(1, 2, 3)
    setting.process.holds |= {1, 2, 3}
    setting.masks.accept([3, 3, 3])
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
            setting.masks._remote.read(0.0)
        process.end()

    setting.children._plays.append(beginning)
    accepted = setting.masks.accept([3, 3])
    assert list(accepted.failures.values()) == [TOO_LARGE] and accepted.token_ids.count(3) == 1


def test_processes_that_end_again_and_again_fail_all(make):
    setting = make(*[ends_at("starts")] * (MAX_ENDS + 1))
    setting.start(1)
    setting.start(2)
    accepted = setting.step(1, 2)
    assert accepted.failures == {1: NO_PROCESS, 2: NO_PROCESS}
    assert setting.workers.num_started == MAX_ENDS and setting.late() == set()


def test_rows_fail_where_no_process_can_be_started(make, monkeypatch: pytest.MonkeyPatch):
    """In less time than the watchdog's; rows that begin later fail at once, until there is a process again."""
    setting = make()
    setting.children.can_fork = False
    sleeps: list[float] = []

    def sleep(seconds: float) -> None:
        sleeps.append(seconds)
        setting.now += 1.0

    monkeypatch.setattr(remote_sequences.time, "sleep", sleep)
    setting.start(1)
    assert setting.step(1).failures == {1: NO_PROCESS}
    assert MISSING_S < len(sleeps) < MISSING_S + 5 and setting.children.num_starts >= len(sleeps)
    setting.masks.end(1)
    setting.start(2)
    before = len(sleeps)
    assert setting.step(2).failures == {2: NO_PROCESS} and len(sleeps) <= before + 1
    setting.masks.end(2)
    setting.children.can_fork = True
    setting.start(3)
    assert setting.step(3).failures == {} and setting.late() == set()


def test_rows_fail_at_once_when_the_server_ends(make):
    setting = make()
    setting.start(1)
    setting.fill(1)
    setting.workers.close()
    assert setting.masks.accept([3]).failures == {1: NO_PROCESS}


def test_nothing_is_left_of_sequences_that_have_ended(make):
    setting = make(None, None, num_sequences=4)
    rng = np.random.default_rng(1)
    for number in range(1, 40):
        row = int(rng.integers(1, 3))
        setting.start(row, number)
        setting.fill(row)
        if rng.random() < 0.3:
            setting.process.end()
        setting.masks.accept([3])
        if rng.random() < 0.3:
            setting.process.end()
        setting.masks.end(number)
        setting.masks.end(number)
    setting.masks._remote.receive(lambda: not setting.masks._remote._ending)
    masks = setting.masks
    assert sorted(masks._remote._regions) == [0, 1, 2, 3]
    assert not (
        masks._remote._sequences
        or masks._remote._by_number
        or masks._remote.late
        or masks._remote._takes
        or masks._remote._drafts
    )
