"""A transcript, cut anywhere, has each token, each byte of text and each row once, and joins to the same bytes."""

import sys
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.contract.events import TokenDelta
from app.contract.packed_logprobs import Logprobs, TokenLogprobs
from app.journal.entries import Delta
from app.streaming.flow.delta_buffer import PIECE_BYTES, delta_bytes
from app.streaming.kept.told_entries import columns_of
from app.streaming.kept.transcript import Transcript
from tests.streaming.kept.recorded_deltas import single

NUM_TOP = 2


def row(token_id: int) -> bytes:
    return Logprobs.of([TokenLogprobs(token_id, -0.5, 1, (token_id, 7), (-0.5, -1.0))], NUM_TOP).rows


@st.composite
def delta_lists(draw: st.DrawFn) -> list[TokenDelta]:
    """Deltas as the engine makes them: numbers without gaps, a tail at most at the end, rows for every token."""
    sizes = draw(st.lists(st.integers(1, 4), max_size=8))
    has_rows, has_tail, ends_with_row = draw(st.booleans()), draw(st.booleans()), draw(st.booleans())
    texts = st.text(st.sampled_from("aé猫\U0001f642\n"), max_size=3)
    deltas, first = [], 1
    for size in [*sizes, *([0] if has_tail else [])]:
        ids = tuple(range(first, first + size))
        deltas.append(TokenDelta("r", 1, first, ids, draw(texts), None))
        first += size
    if not has_rows:
        return deltas
    rows = [b"".join(map(row, delta.token_ids)) for delta in deltas]
    if deltas and (ends_with_row or has_tail):
        rows[-1] += row(99)
    return [delta._replace(logprobs=Logprobs(NUM_TOP, each)) for delta, each in zip(deltas, rows, strict=True)]


def transcript_of(deltas: list[TokenDelta]) -> Transcript:
    transcript = Transcript("r", 1)
    for delta in deltas:
        transcript.append(delta)
    return transcript


def record(delta: TokenDelta) -> Delta:
    """A delta as the journal has it."""
    logprobs = (None, b"") if delta.logprobs is None else (delta.logprobs.num_top, delta.logprobs.rows)
    return Delta(1, delta.token_ids, delta.text, *logprobs)


def joined(deltas: list[TokenDelta]) -> tuple[list[int], str, bytes]:
    ids = [token_id for delta in deltas for token_id in delta.token_ids]
    rows = b"".join(delta.logprobs.rows for delta in deltas if delta.logprobs is not None)
    return ids, "".join(delta.text for delta in deltas), rows


@given(delta_lists())
def test_the_deltas_are_given_back_as_they_came(deltas):
    assert single(transcript_of(deltas).columns()) == [*map(record, deltas)]


@given(delta_lists(), st.data())
def test_the_pieces_between_any_positions_join_to_what_was_told(deltas, data):
    transcript = transcript_of(deltas)
    inner = data.draw(st.sets(st.integers(0, transcript.last)))
    cuts = []
    for after, upto in pairwise(sorted({0, transcript.last, *inner})):
        while after < upto:
            cut = transcript.cut(after, upto)
            assert cut.first == after + 1
            assert cut.request_id == "r"
            assert cut.choice == 1
            after = cut.first - 1 + max(len(cut.token_ids), 1)
            cuts.append(cut)
    assert joined(cuts) == joined(deltas)


@given(delta_lists(), st.data())
def test_columns_are_the_same_as_deltas_one_by_one(deltas, data):
    whole, restored, num_bytes = Transcript("r", 1), Transcript("r", 1), 0
    inner = data.draw(st.sets(st.integers(0, len(deltas))))
    for start, end in pairwise(sorted({0, len(deltas), *inner})):
        num_bytes += restored.extend(columns_of(1, [*map(record, deltas[start:end])]))
    assert num_bytes == sum(map(whole.append, deltas))
    assert restored.columns() == whole.columns()
    assert (restored.num_tokens, restored.last, restored.has_tail) == (whole.num_tokens, whole.last, whole.has_tail)
    assert restored.num_bytes(restored.last) == whole.num_bytes(whole.last)


@given(delta_lists())
def test_the_text_behind_a_position_does_not_depend_on_what_comes_later(deltas):
    whole = transcript_of(deltas)
    for count in range(len(deltas)):
        sofar = transcript_of(deltas[:count])
        for position in range(1, sofar.last + 1):
            assert sofar.cut(0, position) == whole.cut(0, position)


def memory_of(transcript: Transcript) -> int:
    parts = (transcript._token_ids, transcript._ends, transcript._text_ends, transcript._text, transcript._rows)
    return sum(map(sys.getsizeof, parts))


def test_a_token_of_an_ended_choice_takes_12_bytes_and_its_text():
    deltas = [TokenDelta("r", 1, number, (number,), "text") for number in range(1, 1001)]
    transcript, empty = transcript_of(deltas), Transcript("r", 1)
    transcript.trim()
    assert memory_of(transcript) - memory_of(empty) == 1000 * 16 + 1  # a byte behind the text
    assert joined([transcript.cut(0, 400), transcript.cut(400, 1000)]) == joined(deltas)


def test_the_newest_delta_is_read_as_it_came():
    transcript = Transcript("r", 1)
    for number in range(1, 4):
        transcript.append(newest := TokenDelta("r", 1, number, (number,), "x"))
        assert transcript.piece(number - 1, number) is newest
    assert transcript.piece(0, 3).text == "xxx"
    transcript.append(TokenDelta("r-0", 0, 4, (4,), "x"))  # of a request that is a part of the answer
    assert transcript.piece(3, 4) == TokenDelta("r", 1, 4, (4,), "x")


@given(delta_lists())
def test_a_tail_is_told_alone_and_has_the_number_above_the_last_token(deltas):
    transcript = transcript_of(deltas)
    if not transcript.has_tail:
        assert transcript.last == transcript.num_tokens
        return
    assert transcript.last == transcript.num_tokens + 1
    if transcript.num_tokens:
        assert transcript.cut(0, transcript.last) == transcript.cut(0, transcript.num_tokens)
    tail = transcript.cut(transcript.num_tokens, transcript.last)
    assert (tail.token_ids, tail.text) == ((), deltas[-1].text)


@given(delta_lists())
def test_the_bytes_of_a_position_are_those_of_its_deltas(deltas):
    transcript = Transcript("r", 1)
    total = sum(transcript.append(delta) for delta in deltas)
    assert total == sum(map(delta_bytes, deltas)) == transcript.num_bytes(transcript.last)
    for position in range(1, transcript.num_tokens + 1):
        assert transcript.num_bytes(position) == delta_bytes(transcript.cut(0, position))


@pytest.mark.parametrize(("text", "num_rows"), [("x" * 50, 0), ("猫" * 3 * PIECE_BYTES, 0), ("", 1)])
def test_pieces_are_about_as_long_as_a_piece_and_join_to_everything(text, num_rows):
    deltas = [
        TokenDelta("r", 1, number, (number,), text, Logprobs(NUM_TOP, row(number)) if num_rows else None)
        for number in range(1, 601)
    ]
    transcript, after, pieces = transcript_of(deltas), 0, []
    while after < transcript.last:
        pieces.append(transcript.piece(after, transcript.last))
        after += len(pieces[-1].token_ids)
        assert delta_bytes(pieces[-1]) <= 2 * PIECE_BYTES or len(pieces[-1].token_ids) == 1
    assert joined(pieces) == joined(deltas)
    assert len(pieces) > 1


@given(deltas=delta_lists(), is_restored=st.booleans())
def test_its_deltas_are_read_one_by_one_as_they_were_told(deltas, is_restored):
    transcript = transcript_of(deltas)
    if is_restored and deltas:
        told, transcript = transcript, Transcript("r", 1)
        transcript.extend(told.columns())
    found, position = [], 0
    while position < transcript.last:
        found.append(transcript.delta(position))
        position += len(found[-1].token_ids) or 1
    assert found == deltas
