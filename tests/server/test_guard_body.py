"""Where a body ends, however it is cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.contract.errors import HttpInvalid
from app.server.guard import ConnectionLimits
from app.server.guard_body import BodyFrame, ChunkedBody, DeclaredBody

LIMITS = ConnectionLimits(max_headers=3)
NEXT = b"GET / HTTP/1.1\r\n"
CHUNKED = [
    b"0\r\n\r\n",
    b"5\r\nabcde\r\n0\r\n\r\n",
    b"5;name=value\r\nabcde\r\n00a\r\n0123456789\r\n0\r\nX: y\r\nZ: y\r\n\r\n",
    b"2;" + b"x" * 255 + b"\r\n\r\n\r\n0;x\r\n\r\n",
]


def feed(frame: BodyFrame, *pieces: bytes) -> int:
    """Feed pieces until the body ends; return how many bytes belonged to it."""
    size = 0
    for piece in pieces:
        if frame.is_complete:
            break
        size += frame.take(piece)
    return size


@given(st.data(), st.sampled_from([None, *range(1, 9)]), st.sampled_from(CHUNKED))
def test_the_end_is_the_same_however_the_body_is_cut(data, length, chunked):
    body = chunked if length is None else b"x" * length
    wire = body + NEXT
    cuts = sorted(data.draw(st.sets(st.integers(1, len(wire) - 1))))
    pieces = [wire[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(wire)], strict=True)]
    frame = ChunkedBody(LIMITS) if length is None else DeclaredBody(length)
    assert feed(frame, *pieces) == len(body)
    assert frame.is_complete
    assert frame.num_bytes == len(body)


@pytest.mark.parametrize("body", CHUNKED)
def test_a_body_is_not_complete_before_its_last_byte(body):
    frame = ChunkedBody(LIMITS)
    frame.take(body[:-1])
    assert not frame.is_complete
    frame.take(body[-1:])
    assert frame.is_complete


@pytest.mark.parametrize(
    "body",
    [
        b"zz\r\n",
        b"\r\n",
        b"-5\r\n",
        b"0x5\r\n",
        b"5 \r\n",
        b"5\n",
        b"1_0\r\n",
        b"123456789\r\n",
        b"5;" + b"x" * 256 + b"\r\n",
        b"5;" + b"x" * 1000,
        b"0" * 1000,
        b"0\r\n" + b"X: y\r\n" * 4,
        b"0\r\nX: " + b"y" * 1000,
    ],
)
def test_broken_or_endless_framing_is_refused_whole_and_byte_by_byte(body):
    with pytest.raises(HttpInvalid):
        feed(ChunkedBody(LIMITS), body)
    with pytest.raises(HttpInvalid):
        feed(ChunkedBody(LIMITS), *(body[at : at + 1] for at in range(len(body))))
