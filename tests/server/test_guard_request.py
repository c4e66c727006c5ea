"""The rules for a request's head, and where its body ends for any split into pieces."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.contract.errors import HeadersTooLarge, HttpInvalid, TransferEncodingUnknown
from app.server.guard import ConnectionLimits
from app.server.guard_request import BodyFraming, ChunkedBody, DeclaredBody, check_headers

HEAD_LIMITS = ConnectionLimits(max_headers=4)
HOST = (b"host", b"a")
LIMITS = ConnectionLimits(max_headers=3)
NEXT = b"GET / HTTP/1.1\r\n"
CHUNKED = [
    b"0\r\n\r\n",
    b"5\r\nabcde\r\n0\r\n\r\n",
    b"5;name=value\r\nabcde\r\n00a\r\n0123456789\r\n0\r\nX: y\r\nZ: y\r\n\r\n",
    b"2;" + b"x" * 255 + b"\r\n\r\n\r\n0;x\r\n\r\n",
]


def length(value: bytes) -> tuple[bytes, bytes]:
    return (b"content-length", value)


def encoding(value: bytes) -> tuple[bytes, bytes]:
    return (b"transfer-encoding", value)


@pytest.mark.parametrize("headers", [[HOST], [HOST, length(b"0")], [(b"x", b"y"), HOST]])
def test_a_request_without_a_body_has_no_framing(headers):
    assert check_headers(headers, HEAD_LIMITS) is None


@pytest.mark.parametrize("headers", [[HOST, length(b"5")], [HOST, encoding(b"chunked")], [HOST, encoding(b"Chunked")]])
def test_a_request_with_a_body_has_a_framing(headers):
    assert check_headers(headers, HEAD_LIMITS) is not None


@pytest.mark.parametrize(
    ("headers", "error"),
    [
        ([], HttpInvalid),
        ([HOST, HOST], HttpInvalid),
        ([HOST] + [(b"x", b"y")] * 4, HeadersTooLarge),
        ([HOST, length(b"5"), length(b"5")], HttpInvalid),
        ([HOST, length(b"-5")], HttpInvalid),
        ([HOST, length(b"+5")], HttpInvalid),
        ([HOST, length(b"5, 5")], HttpInvalid),
        ([HOST, length(b"0x5")], HttpInvalid),
        ([HOST, length(b"")], HttpInvalid),
        ([HOST, length(b"\xb2")], HttpInvalid),
        ([HOST, length(b"2147483649")], HttpInvalid),
        ([HOST, length(b"9" * 5000)], HttpInvalid),
        ([HOST, encoding(b"gzip, chunked")], TransferEncodingUnknown),
        ([HOST, encoding(b"chunked, chunked")], TransferEncodingUnknown),
        ([HOST, encoding(b"identity")], TransferEncodingUnknown),
        ([HOST, encoding(b"")], TransferEncodingUnknown),
        ([HOST, encoding(b"chunked"), encoding(b"chunked")], TransferEncodingUnknown),
        ([HOST, encoding(b"chunked"), length(b"5")], HttpInvalid),
    ],
)
def test_an_ambiguous_head_is_rejected(headers, error):
    with pytest.raises(error):
        check_headers(headers, HEAD_LIMITS)


def test_the_largest_declared_body_is_2_gib():
    frame = check_headers([HOST, length(b"2147483648")], HEAD_LIMITS)
    assert frame is not None
    assert frame.take(b"x" * 10) == 10
    assert not frame.is_complete


def feed(frame: BodyFraming, *pieces: bytes) -> int:
    """Feed pieces until the body ends; return how many bytes belonged to it."""
    size = 0
    for piece in pieces:
        if frame.is_complete:
            break
        size += frame.take(piece)
    return size


@given(st.data(), st.sampled_from([None, *range(1, 9)]), st.sampled_from(CHUNKED))
def test_the_end_of_a_body_is_found_in_any_split_into_pieces(data, length, chunked):
    body = chunked if length is None else b"x" * length
    wire = body + NEXT
    cuts = sorted(data.draw(st.sets(st.integers(1, len(wire) - 1))))
    pieces = [wire[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(wire)], strict=True)]
    frame = ChunkedBody(LIMITS) if length is None else DeclaredBody(length)
    assert feed(frame, *pieces) == len(body)
    assert frame.is_complete
    assert frame.num_bytes == len(body)


def test_a_body_has_a_bounded_number_of_chunks():
    """Each costs some microseconds of the event loop, however small it is."""
    allowed = b"1\r\na\r\n" * LIMITS.max_chunks
    frame = ChunkedBody(LIMITS)
    assert frame.take(allowed + b"0\r\n\r\n") == len(allowed) + len(b"0\r\n\r\n")
    assert frame.is_complete
    frame = ChunkedBody(LIMITS)
    frame.take(allowed)
    with pytest.raises(HttpInvalid, match=r"more than 4,000 chunks; send larger ones\."):
        frame.take(b"1\r\na\r\n" * 5)


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
def test_invalid_or_endless_framing_is_rejected_in_one_piece_and_byte_by_byte(body):
    with pytest.raises(HttpInvalid):
        feed(ChunkedBody(LIMITS), body)
    with pytest.raises(HttpInvalid):
        feed(ChunkedBody(LIMITS), *(body[at : at + 1] for at in range(len(body))))
