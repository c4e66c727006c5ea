"""The masks of a step's samples, with draft tokens and reasoning, and what the sampled tokens say."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import orjson
import pytest
import torch

from app.contract.grammar import Constraint, Grammar, GrammarKind, ReasoningMarks
from app.contract.sampling_params import SamplingParams
from app.engine.execute.local_masks import LocalMasks
from app.engine.execute.masks import NOT_COMPILED, NOTHING_LEFT, Accepted, MaskBuffers
from app.engine.execute.worker_masks import WorkerMasks, make_masks
from app.engine.schedule.row_sampling import RowSampling
from app.engine.schedule.step_plan import (
    NO_ALLOWED_TOKEN,
    NO_TOKEN,
    NOT_SAMPLED,
    Chunk,
    Chunks,
    RowStart,
    SampleRow,
    StepPlan,
)
from app.text.grammar.cache import GrammarCache
from app.text.grammar.grammar_entries import Lease
from tests.engine.served import ignore_time
from tests.text import toys
from tests.text.grammar.served_cache import ServedCache

TEXT, _ = toys.toy("byte_level")
EOS = 1
A, B, C, X, Z, QUOTE = (TEXT.encode(letter, add_special_tokens=False)[0] for letter in 'abcxz"')
OPEN, CLOSE = TEXT.vocab_size - 1, TEXT.vocab_size - 2
ABC = Grammar(GrammarKind.CHOICE, '["abc", "abx"]')


class MaskSetup:
    """Masks over a toy vocabulary, and the rows that they know."""

    def __init__(self, cache: GrammarCache) -> None:
        self.cache, self.leases = cache, list[Lease]()
        self._sampled_rows: list[int] = []  # the row of each sample
        self.cache.load(TEXT, TEXT.vocab_size, (EOS,))
        buffers = MaskBuffers.allocate(16, TEXT.vocab_size)
        self.masks = make_masks(self.cache, buffers, TEXT.vocab_size, (EOS,), 1, 8)

    def start(self, row: int, grammar: Grammar | None = ABC, output: tuple[int, ...] = (), **fields: Any) -> None:
        """Begin a row; its grammar is leased."""
        if grammar is not None:
            self.leases.append(self.cache.lease(grammar))
        sampling = RowSampling.of(SamplingParams(), Constraint(grammar, **fields))
        self.masks.start(RowStart(row, row, 0, sampling, (5,), output))

    def wait(self) -> None:
        """Wait until the masks behind the last step are there."""
        while isinstance(self.masks, WorkerMasks) and self.masks.late():
            pass

    def fill(self, *samples: tuple[int, list[int]]) -> list[set[int] | None]:
        """Fill a step in which rows have draft tokens; return what each sample may be, None for everything."""
        chunks = [Chunk(row, row, 0, (9, *draft)) for row, draft in samples]
        sampled = [SampleRow(row, row) for row, draft in samples for _ in range(1 + len(draft))]
        self._sampled_rows = [row for row, _ in sampled]
        self.masks.fill(StepPlan(1, Chunks.of(chunks), tuple(range(len(sampled))), tuple(sampled)))
        allowed = [self.masks.allowed(sample) for sample in range(len(sampled))]
        return [None if mask is None else set(torch.nonzero(mask).flatten().tolist()) for mask in allowed]

    def accept(self, token_ids: list[int]) -> Accepted:
        """Let the rows of the step take their tokens, and wait until their ends are known."""
        accepted = self.masks.accept(token_ids)
        accepted.ends[:] = map(bool, accepted.ends)
        for end in self.masks.take_ends():
            accepted.ends[len(self._sampled_rows) - 1 - self._sampled_rows[::-1].index(end.sequence_id)] = True
        return accepted


def deep(number: int) -> Grammar:
    """A grammar whose mask behind six letters takes too many states, or too much work."""
    patterns = [{"pattern": f"^(z*q|z{{6}}(.*)k{each}(.*))$"} for each in range(number)]
    return Grammar(GrammarKind.JSON_SCHEMA, orjson.dumps({"type": "string", "allOf": patterns}).decode())


@pytest.fixture(params=[GrammarCache, ServedCache], ids=["local", "worker"])
def setup(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[MaskSetup]:
    """Masks that are made in this process, and by another one."""
    ignore_time(monkeypatch)
    make_cache: Callable[[], GrammarCache] = request.param
    setup = MaskSetup(make_cache())
    assert isinstance(setup.masks, WorkerMasks if setup.cache.is_served else LocalMasks)
    yield setup
    assert setup.cache.num_processes <= 1, "no process has ended by itself"
    setup.cache.close()


def test_rows_without_a_grammar_have_no_mask(setup: MaskSetup):
    setup.start(2)
    found = setup.fill((1, []), (2, []), (3, []))
    assert found[0] is found[2] is None and found[1] is not None and A in found[1] and X not in found[1]
    setup.masks.release(2)
    assert setup.fill((1, []), (2, [])) == [None, None] and not setup.masks.has_constraints


def test_each_draft_token_has_a_mask_until_one_is_forbidden(setup: MaskSetup):
    setup.start(1)
    found = setup.fill((1, [A, B, X]), (2, [A]))
    assert [found[0] and A in found[0], found[1] and B in found[1], found[2] and {C, X} <= found[2]] == [True] * 3
    assert found[3] in ({EOS}, None), "the draft completes the grammar, so this sample does not count"
    assert found[4:] == [None, None]
    forbidden = setup.fill((1, [A, X, B]))
    assert forbidden[0] is not None and forbidden[1] is not None and forbidden[2:] == [None, None]


def test_a_number_ends_behind_its_last_digit_with_draft_tokens_and_without(setup: MaskSetup):
    digit, point, *_ = (TEXT.encode(letter, add_special_tokens=False)[0] for letter in "7.")
    number = Grammar(GrammarKind.JSON_SCHEMA, '{"type":"number"}')
    for row, num_digits in enumerate((18, 19, 20)):
        setup.start(row, number, (digit,) * num_digits)
    found = setup.fill((0, [digit, digit]), (1, [digit]), (2, []))
    assert [found[sample] is not None and digit in found[sample] for sample in (0, 1, 3)] == [True] * 3
    assert all(
        mask is not None and digit not in mask and {point, EOS} <= mask for mask in (found[2], found[4], found[5])
    )
    setup.accept([digit, digit, point, digit, EOS, point])
    setup.wait()
    for sample, mask in enumerate(setup.fill((0, []), (2, [digit]))):
        assert mask is not None and digit in mask, sample


def test_sampled_tokens_are_taken_while_they_equal_the_draft_and_one_more(setup: MaskSetup):
    setup.start(1)
    setup.fill((1, [A, C]))
    accepted = setup.accept([A, B, NO_ALLOWED_TOKEN])
    assert accepted.ends == [False] * 3 and not accepted.failures and accepted.token_ids == [A, B, NO_ALLOWED_TOKEN]
    assert {C, X} <= (setup.fill((1, []))[0] or set())
    assert setup.accept([C]).ends == [True]


def test_forced_tokens_are_the_only_ones_that_masks_allow(setup: MaskSetup):
    setup.start(1, Grammar(GrammarKind.REGEX, "You are (a|x) helpful"))
    assert set(setup.masks.rows) == {1}
    lengths = []
    while True:
        forced = setup.masks.forced(1)
        found = setup.fill((1, list(forced)))
        assert found[:-1] == [{token_id} for token_id in forced]
        lengths.append(len(forced))
        if any(setup.accept([*forced, min(found[-1] or {EOS})]).ends):
            break
        setup.wait()
    assert sum(lengths) >= 3 and 0 in lengths


def test_a_row_that_starts_again_goes_on_where_it_was(setup: MaskSetup):
    setup.start(1, output=(A, B))
    assert {C, X} <= (setup.fill((1, []))[0] or set())


def test_failures_have_a_reason_and_no_token(setup: MaskSetup):
    setup.start(1)
    setup.start(2)
    setup.start(3, Grammar(GrammarKind.REGEX, "a"))
    setup.fill((1, []), (2, []), (3, []))
    accepted = setup.accept([NO_ALLOWED_TOKEN, X, A])
    assert accepted.failures[1] == NOTHING_LEFT and 3 not in accepted.failures
    if setup.cache.is_served:  # what a token has led to is told in the next step
        setup.fill((2, []))
        accepted = setup.accept([NO_ALLOWED_TOKEN])
    assert 2 in accepted.failures


def test_a_grammar_that_is_not_compiled_fails_in_this_process():
    """Where another process finds the masks it compiles the grammar."""
    setup = MaskSetup(GrammarCache())
    setup.masks.start(RowStart(4, 4, 0, RowSampling.of(SamplingParams(), Constraint(ABC)), (5,), ()))
    assert setup.fill((4, [])) == [set()]
    assert setup.accept([NO_ALLOWED_TOKEN]).failures == {4: NOT_COMPILED}


def test_a_draft_may_cross_the_reasoning(setup: MaskSetup):
    """From before the opening mark to the grammar behind the closing one: the samples at both ends are its."""
    setup.start(1, reasoning=ReasoningMarks(OPEN, CLOSE))
    found = setup.fill((1, [OPEN, X, CLOSE, A, X]))
    assert found[0] is not None and {OPEN, A} <= found[0] and X not in found[0]
    for inside in found[1:3]:
        assert inside is not None and len(inside) == TEXT.vocab_size - 1 and EOS not in inside
    assert found[3] is not None and A in found[3] and OPEN not in found[3] and X not in found[3]
    assert found[4] is not None and B in found[4] and found[5] is None
    setup.accept([OPEN, X, CLOSE, A, B, NO_TOKEN])
    assert {C, X} <= (setup.fill((1, []))[0] or set())


def test_a_spent_budget_allows_the_closing_mark_alone(setup: MaskSetup):
    marks = ReasoningMarks(OPEN, CLOSE, is_inside=True)
    setup.start(1, None, reasoning=marks, thinking_token_budget=1)
    assert setup.fill((1, [X, CLOSE])) == [None, {CLOSE}, None]
    setup.accept([X, CLOSE, B])
    assert setup.fill((1, [])) == [None]


def test_an_error_behind_draft_tokens_fails_nobody(setup: MaskSetup):
    """They are only a draft: what was sampled behind the first mask does not count, and the row goes on."""
    setup.start(1, deep(11), (QUOTE, Z, Z))
    first, *_ = setup.fill((1, [Z] * 5))
    assert first is not None and Z in first
    accepted = setup.accept([Z] * 6)
    assert not accepted.failures and accepted.token_ids[:2] == [Z, NOT_SAMPLED]
    setup.wait()
    (mask,) = setup.fill((1, []))
    assert mask is not None and Z in mask
    while mask:
        assert not setup.accept([Z]).failures
        setup.wait()
        (mask,) = setup.fill((1, []))
    assert "too complex" in setup.accept([NO_ALLOWED_TOKEN]).failures[1]
