"""Choices that are generated again: whatever the deltas of both processes, each token and its text come once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.contract.events import TokenDelta
from app.contract.packed_logprobs import Logprobs, TokenLogprobs
from app.streaming.kept.regeneration import Diverged, Regeneration
from app.streaming.kept.transcript import Transcript
from tests.streaming.kept.live_engine import delta, finished

TEXTS = ["Hel", "", "lo", "é", " ", "", "wörld", "!"]


def deltas_of(cuts: set[int], *, has_logprobs: bool = False) -> list[TokenDelta]:
    """The tokens of TEXTS, whose ids are their numbers, in deltas that end at `cuts` and at the end."""
    found, start = [], 0
    for end in sorted(cuts | {len(TEXTS)}):
        ids = tuple(range(start + 1, end + 1))
        rows = Logprobs.of([TokenLogprobs(one, -one, 1, (), ()) for one in ids], 0) if has_logprobs else None
        found.append(TokenDelta("r", 0, start + 1, ids, "".join(TEXTS[start:end]), rows))
        start = end
    return found


CUTS = st.sets(st.integers(1, len(TEXTS) - 1))


@given(CUTS, CUTS, st.integers(0, 8), st.booleans())
def test_the_rest_begins_behind_the_last_told_token(before: set[int], after: set[int], num_told: int, has_rows: bool):
    told = Transcript("r", 0)
    for one in deltas_of(before, has_logprobs=has_rows)[:num_told]:
        told.append(one)
    if not told.num_tokens:
        return
    num_before = told.num_tokens
    regeneration = Regeneration(told.cut(0, num_before))
    for one in deltas_of(after, has_logprobs=has_rows):
        rest = regeneration.rest(one)
        if rest is not None:
            assert isinstance(rest, TokenDelta)
            told.append(rest)
    whole = told.cut(0, told.num_tokens)
    assert (whole.token_ids, whole.text) == (tuple(range(1, 9)), "".join(TEXTS))
    if has_rows:
        assert whole.logprobs is not None
        assert [row.token_id for row in whole.logprobs] == [*range(1, 9)]
    assert regeneration.rest(finished("r")) == finished("r")


@pytest.mark.parametrize(
    "events",
    [
        [TokenDelta("r", 0, 1, (1, 9), "Hel")],
        [TokenDelta("r", 0, 1, (1, 2), "Hal")],
        [TokenDelta("r", 0, 1, (1,), "Hel"), finished("r")],
    ],
)
def test_other_tokens_texts_and_ends_are_found(events: list[TokenDelta]):
    regeneration = Regeneration(delta("r", 1, "Hel", size=2))
    with pytest.raises(Diverged):
        for event in events:
            regeneration.rest(event)
