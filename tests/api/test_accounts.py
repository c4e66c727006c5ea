"""Whose account a request counts for: its key's, else its peer's address."""

import pytest
from starlette.requests import HTTPConnection

from app.api.accounts import Sender, account_of_address


@pytest.mark.parametrize(
    ("address", "account"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("::FFFF:c000:0207", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::1", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::1", "2001:db8:1:3::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::/64"),
        ("testclient", "testclient"),
        ("", ""),
    ],
)
def test_an_address_counts_as_far_as_one_customer_has_it(address, account):
    assert account_of_address(address) == account


def make_connection(client: tuple[str, int] | None, **headers: str) -> HTTPConnection:
    named = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return HTTPConnection({"type": "http", "headers": named, "client": client})


def test_a_key_is_an_account_wherever_it_comes_from():
    assert Sender.of("key-2", make_connection(("192.0.2.7", 1))) == ("key-2", "key-2")


def test_without_keys_the_peer_is_the_account_whatever_headers_say():
    liar = make_connection(("192.0.2.7", 1), x_forwarded_for="198.51.100.1", forwarded="for=198.51.100.1")
    assert Sender.of(None, liar) == (None, "192.0.2.7")


def test_a_connection_without_an_address_has_an_account_too():
    assert Sender.of(None, make_connection(None)) == (None, "")
