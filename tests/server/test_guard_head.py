"""What a request's head must be."""

import pytest

from app.contract.errors import HeadersTooLarge, HttpInvalid, TransferEncodingUnknown
from app.server.guard import ConnectionLimits
from app.server.guard_head import check_headers

LIMITS = ConnectionLimits(max_headers=4)
HOST = (b"host", b"a")


def length(value: bytes) -> tuple[bytes, bytes]:
    return (b"content-length", value)


def encoding(value: bytes) -> tuple[bytes, bytes]:
    return (b"transfer-encoding", value)


@pytest.mark.parametrize("headers", [[HOST], [HOST, length(b"0")], [(b"x", b"y"), HOST]])
def test_a_request_without_a_body_has_no_frame(headers):
    assert check_headers(headers, LIMITS) is None


@pytest.mark.parametrize("headers", [[HOST, length(b"5")], [HOST, encoding(b"chunked")], [HOST, encoding(b"Chunked")]])
def test_a_body_has_a_frame(headers):
    assert check_headers(headers, LIMITS) is not None


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
def test_a_head_in_doubt_is_refused(headers, error):
    with pytest.raises(error):
        check_headers(headers, LIMITS)


def test_the_largest_declared_body_is_2_gib():
    frame = check_headers([HOST, length(b"2147483648")], LIMITS)
    assert frame is not None
    assert frame.take(b"x" * 10) == 10
    assert not frame.is_complete
