"""The place of a sequence in its reasoning follows from its tokens, sampled or replayed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from app.contract.grammar import Constraint, Grammar, GrammarKind, ReasoningMarks
from app.text.grammar.row_mask import Phase, RowMask

OPEN, CLOSE, OTHER = 70, 71, 5
GRAMMAR = Grammar(GrammarKind.REGEX, "a")


class FakeMatcher:
    """Notes the tokens that it consumes; the third one completes it."""

    def __init__(self, forced: Sequence[int] = ()) -> None:
        self.tokens: list[int] = []
        self.forced, self.num_asked = list(forced), 0

    def consume_token(self, token_id: int) -> bool:
        self.tokens.append(token_id)
        return True

    def compute_ff_tokens(self) -> list[int]:
        self.num_asked += 1
        return self.forced[len(self.tokens) :]

    def deep_copy(self) -> FakeMatcher:
        return self

    def compute_bitmask(self) -> bytes:
        return b""

    def is_stopped(self) -> bool:
        return len(self.tokens) == 3

    def is_error(self) -> bool:
        return False


def row(constraint: Constraint, *tokens: int) -> tuple[RowMask, list[int]]:
    """A row that has sampled some tokens, and what its grammar has consumed; a replay of them must give the same."""
    matchers = [FakeMatcher() if constraint.grammar else None for _ in range(2)]
    sampled, replayed = RowMask(constraint, matchers[0], ()), RowMask(constraint, matchers[1], tokens)
    for token_id in tokens:
        sampled.take(token_id)
    assert sampled.place == replayed.place
    consumed = [matcher.tokens if matcher else [] for matcher in matchers]
    assert consumed[0] == consumed[1]
    return sampled, consumed[0]


@pytest.mark.parametrize(
    ("is_inside", "tokens", "phase", "consumed"),
    [
        (False, (), Phase.OUTSIDE, []),
        (False, (OTHER, OPEN), Phase.ANSWERING, [OTHER, OPEN]),
        (False, (OPEN,), Phase.THINKING, []),
        (False, (OPEN, OTHER, OPEN), Phase.THINKING, []),
        (False, (OPEN, OTHER, CLOSE), Phase.ANSWERING, []),
        (False, (OPEN, OTHER, CLOSE, OTHER), Phase.ANSWERING, [OTHER]),
        (True, (), Phase.THINKING, []),
        (True, (OTHER, CLOSE, OTHER, CLOSE), Phase.ANSWERING, [OTHER, CLOSE]),
    ],
)
def test_the_grammar_begins_after_the_reasoning(is_inside: bool, tokens: tuple, phase: Phase, consumed: list):
    found, seen = row(Constraint(GRAMMAR, ReasoningMarks(OPEN, CLOSE, is_inside)), *tokens)
    assert found.place.phase is phase and seen == consumed


def test_without_marks_the_grammar_begins_at_once():
    found, seen = row(Constraint(GRAMMAR), OPEN, OTHER)
    assert found.place.phase is Phase.ANSWERING and seen == [OPEN, OTHER] and not found.is_complete
    found.take(OTHER)
    assert found.is_complete


@pytest.mark.parametrize("budget", [0, 1, 3])
def test_a_budget_counts_the_tokens_of_all_blocks(budget: int):
    constraint = Constraint(None, ReasoningMarks(OPEN, CLOSE), budget)
    found, _ = row(constraint, OTHER, OPEN, *[OTHER] * budget)
    assert found.gate.must_close(found.place)
    again, _ = row(constraint, OTHER, OPEN, *[OTHER] * budget, CLOSE, OTHER, OPEN)
    assert again.gate.must_close(again.place)
    if budget:
        early, _ = row(constraint, OPEN, *[OTHER] * (budget - 1))
        assert not early.gate.must_close(early.place)
    assert not found.is_complete


def test_the_library_is_asked_once_for_a_run_of_forced_tokens():
    matcher = FakeMatcher([1, 2, 3])
    found = RowMask(Constraint(GRAMMAR), matcher, ())
    assert found.forced() == found.forced() == (1, 2, 3)
    found.take(1)
    assert found.forced() == (2, 3) and matcher.num_asked == 1
    found.take(2)
    found.take(3)
    assert found.forced() == () and matcher.num_asked == 2


def test_another_token_than_the_forced_one_ends_the_run():
    matcher = FakeMatcher([1, 2, 3])
    found = RowMask(Constraint(GRAMMAR), matcher, ())
    found.forced()
    found.take(9)
    assert found.forced() == (2, 3) and matcher.num_asked == 2


@pytest.mark.parametrize(
    ("tokens", "forced"),
    [((), ()), ((OPEN,), ()), ((OPEN, OTHER), (CLOSE,)), ((OPEN, OTHER, CLOSE), (1, 2)), ((1,), (2,))],
    ids=["may reason", "reasons", "budget spent", "answers", "has not reasoned"],
)
def test_forced_tokens_depend_on_the_reasoning(tokens: tuple, forced: tuple):
    constraint = Constraint(GRAMMAR, ReasoningMarks(OPEN, CLOSE), 1)
    found = RowMask(constraint, FakeMatcher([1, 2]), tokens)
    assert found.forced() == forced
    found.failure = "it cannot go on"
    assert found.forced() == ()
