"""The reader that does not parse events: pieces, bytes, the end, and the count of tokens."""

import pytest

from benchmarks.piece_reader import TAIL_BYTES, PieceReader
from tests.loadgen.fakes import DONE, chunked, rejection, stream, text, usage


def test_arrival_times_of_pieces_are_recorded():
    reader, answer = PieceReader(), stream(3)
    middle = answer.index(b"data: ", 200)
    reader.feed(answer[:20], 1.0)
    reader.feed(answer[20:middle], 2.0)
    assert not reader.is_over
    reader.feed(answer[middle:], 3.0)
    assert (reader.times, reader.status, reader.is_over, reader.num_tokens()) == ([2.0, 3.0], 200, True, 3)


def test_only_the_tail_is_kept():
    reader = PieceReader()
    reader.feed(chunked(*[text("a" * 1000)] * 5, usage(1, 5), DONE), 0.0)
    assert reader.num_bytes > 5000 and len(reader.tail) == TAIL_BYTES
    assert reader.num_tokens() == 5


@pytest.mark.parametrize(
    "answer", [rejection(), chunked(usage(1, 5), is_complete=False), chunked(text()), b"hello", b""]
)
def test_rejected_truncated_and_invalid_responses_have_no_tokens(answer):
    reader = PieceReader()
    reader.feed(answer, 0.0)
    with pytest.raises(RuntimeError, match="rejected or truncated"):
        reader.num_tokens()
