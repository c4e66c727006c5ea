"""A buffer is split where credit ends, and no token is lost or duplicated."""

from hypothesis import given
from hypothesis import strategies as st

from app.contract.events import TokenDelta
from app.contract.packed_logprobs import Logprobs, TokenLogprobs, row_bytes
from app.streaming.flow.delta_buffer import TOKEN_BYTES, DeltaBuffer, delta_bytes


def delta(first: int, text: str, count: int = 1, *, logprobs: bool = False) -> TokenDelta:
    ids = tuple(range(first, first + count))
    entries = Logprobs.of([TokenLogprobs(i, -1.0, 1, (), ()) for i in ids], 0) if logprobs else None
    return TokenDelta("r", 0, first, ids, text, entries)


def buffer_of(*deltas: TokenDelta) -> DeltaBuffer:
    buffer = DeltaBuffer(deltas[0])
    for each in deltas[1:]:
        buffer.append(each)
    return buffer


def test_without_a_limit_all_tokens_are_taken():
    assert buffer_of(delta(1, "a"), delta(2, "é")).take(None) == delta(1, "aé", 2)


def test_a_buffer_is_split_between_tokens():
    buffer = buffer_of(delta(4, "a"), delta(5, "bc"), delta(6, "d"))
    assert buffer.take(3) is None
    assert buffer.take(5) == delta(4, "abc", 2)
    assert buffer.num_tokens == 1
    assert buffer.take(9) == delta(6, "d")
    assert buffer.num_tokens == 0


def test_the_text_of_a_split_delta_is_in_the_part_with_its_last_token():
    buffer = buffer_of(delta(1, "drafts", 3))
    assert buffer.take(2) == delta(1, "", 2)
    assert buffer.take(3) == delta(3, "drafts", 1)


def test_text_without_a_token_needs_no_credit():
    buffer = buffer_of(delta(4, "held back", 0), delta(4, "x"))
    assert buffer.take(3) == delta(4, "held back", 0)
    assert buffer.take(3) is None


def test_logprobs_count_as_bytes_and_are_split_with_their_tokens():
    buffer = buffer_of(delta(1, "a", logprobs=True), delta(2, "b", logprobs=True))
    assert delta_bytes(delta(1, "é", logprobs=True)) == TOKEN_BYTES + row_bytes(0) + 2
    assert buffer.take(1) == delta(1, "a", logprobs=True)
    assert buffer.take(2) == delta(2, "b", logprobs=True)


@given(
    st.lists(st.tuples(st.text(max_size=4), st.integers(0, 3), st.booleans()), min_size=1, max_size=20),
    st.lists(st.integers(0, 60), max_size=20),
)
def test_any_limits_give_the_same_text_ids_and_numbers(pieces: list[tuple[str, int, bool]], limits: list[int]):
    deltas, number = [], 1
    for text, count, _ in pieces:
        deltas.append(delta(number, text, count, logprobs=True))
        number += count
    buffer = buffer_of(*deltas)
    taken: list[TokenDelta] = []
    for limit in [*sorted(limits), None]:
        if limit is None and not buffer.num_tokens and taken:
            break
        part = buffer.take(limit)
        if part is not None:
            assert limit is None or part.first + len(part.token_ids) - 1 <= limit or not part.token_ids
            taken.append(part)
        if not buffer.num_tokens:
            break
    assert "".join(part.text for part in taken) == "".join(text for text, _, _ in pieces)
    assert [i for part in taken for i in part.token_ids] == list(range(1, number))
    assert sum(len(part.logprobs or ()) for part in taken) == number - 1
    expected = 1
    for part in taken:
        assert part.first == expected
        expected += len(part.token_ids)
    assert buffer.num_tokens == 0
