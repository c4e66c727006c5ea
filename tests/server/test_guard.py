"""The default limits, the count of connections per address, and the response to a rejected connection."""

import json
import logging

import pytest

from app.contract.errors import HeadersTooLarge, RateLimitExceeded
from app.observe.log import ACCESS_LOGGER
from app.server.guard import ConnectionLimits, Guard

CLIENT = ("192.0.2.1", 5)


def test_an_address_can_open_connections_up_to_the_limit():
    guard = Guard(ConnectionLimits(), 2)
    assert [guard.enter("192.0.2.1") for _ in range(3)] == [True, True, False]
    assert guard.enter("192.0.2.2")
    guard.leave("192.0.2.1")
    guard.leave("192.0.2.1")
    assert guard.enter("192.0.2.1")


def test_a_count_of_zero_is_removed():
    guard = Guard(ConnectionLimits(), 1)
    for number in range(100):
        guard.enter(f"192.0.2.{number}")
        guard.leave(f"192.0.2.{number}")
    assert guard.counts.total() == 0
    assert not guard.counts


@pytest.mark.parametrize("address", ["127.0.0.1", "127.1.2.3", "::1", "::ffff:127.0.0.1", None])
def test_loopback_addresses_are_not_counted(address):
    guard = Guard(ConnectionLimits(), 1)
    assert all(guard.enter(address) for _ in range(5))
    guard.leave(address)
    assert guard.counts.total() == 0


def test_a_rejection_is_a_json_error_and_closes_the_connection():
    wire = Guard(ConnectionLimits(), 1).rejection(HeadersTooLarge("Too much."), [(b"date", b"today")], client=CLIENT)
    head, _, body = wire.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    assert lines[0] == "HTTP/1.1 431 Request Header Fields Too Large"
    assert {"date: today", "content-type: application/json", f"content-length: {len(body)}"} <= set(lines)
    assert lines.count("connection: close") == 1
    assert json.loads(body)["error"] == {
        "message": "Too much.", "type": "invalid_request_error", "param": None, "code": "request_too_large",
    }  # fmt: skip


def test_a_rejection_is_logged_once_with_the_request_id_of_the_response(caplog):
    with caplog.at_level(logging.INFO, ACCESS_LOGGER):
        wire = Guard(ConnectionLimits(), 1).rejection(
            RateLimitExceeded("Slower."), [], client=CLIENT, method="GET", path="/x", duration_s=0.5
        )
    (record,) = caplog.records
    fields = record.fields
    assert (fields["client"], fields["method"], fields["path"]) == ("192.0.2.1", "GET", "/x")
    assert (fields["status"], fields["reason"], fields["duration_ms"]) == (429, "rate_limit_exceeded", 500)
    assert f"x-request-id: {fields['request_id']}".encode() in wire


def test_the_default_limits_are_the_documented_ones():
    limits = ConnectionLimits()
    assert (limits.max_head_bytes, limits.max_url_bytes, limits.max_handshake_bytes) == (16384, 8192, 8192)
    assert (limits.max_headers, limits.max_fragments, limits.max_pings_per_s) == (64, 1000, 50)
    assert (limits.head_timeout_s, limits.body_timeout_s, limits.min_body_rate) == (10, 30, 1024)
