"""Keys, and the account of a request: its key's, else its peer's address."""

import hmac

import pytest
from starlette.datastructures import Headers
from starlette.requests import HTTPConnection

from app.api.http.accounts import ApiKeys, Sender, account_of_address
from app.config.settings import make_config
from tests.own_process import within_processor_time

ADDRESS = "192.0.2.1"


def make_keys(**settings: object) -> ApiKeys:
    return ApiKeys(make_config(settings).server)


def sender_of(keys: ApiKeys, headers: dict[str, str]) -> Sender:
    return keys.sender_of(HTTPConnection({"type": "http", "headers": Headers(headers).raw, "client": (ADDRESS, 1)}))


@pytest.mark.parametrize(
    ("headers", "is_open"),
    [
        ([], False),
        ([("authorization", "Bearer one")], True),
        ([("authorization", "Bearer two")], True),
        ([("x-api-key", "two")], True),
        ([("authorization", "Bearer one"), ("x-api-key", "two")], True),
        ([("authorization", "Bearer wrong")], False),
        ([("authorization", "Bearer ")], False),
        ([("authorization", "bearer one")], True),
        ([("authorization", "BEARER \t  one")], True),
        ([("authorization", "\t Bearer one \t")], True),
        ([("authorization", "Bearer\xa0one")], False),
        ([("authorization", "Bearerone")], False),
        ([("authorization", "Bearer")], False),
        ([("authorization", "Bearer one two")], False),
        ([("authorization", "Basic one")], False),
        ([("authorization", "one")], False),
        ([("authorization", "Bearer one ")], True),
        ([("authorization", "Bearer one"), ("authorization", "Bearer one")], False),
        ([("x-api-key", "one"), ("x-api-key", "one")], False),
        ([("authorization", "Bearer one"), ("x-api-key", "wrong")], False),
        ([("authorization", "Bearer wrong"), ("x-api-key", "one")], False),
        ([("x-api-key", "")], False),
        ([("x-api-key", "\xff")], False),
    ],
)
def test_exactly_one_valid_key_is_accepted(headers, is_open):
    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers]
    assert make_keys(api_key=("one", "two")).check_headers(Headers(raw=raw)) is is_open


def test_a_header_of_many_blanks_is_read_in_linear_time():
    value = f"Bearer a{' ' * 200_000}a"
    assert not within_processor_time(5, is_accepted, value)  # read blank by blank it would take minutes


def is_accepted(authorization: str) -> bool:
    return make_keys(api_key=("one",)).check_headers(Headers({"authorization": authorization}))


def test_without_configured_keys_every_request_is_accepted():
    keys = make_keys()
    for raw in ([], [(b"authorization", b"x"), (b"authorization", b"y")]):
        assert keys.check_headers(Headers(raw=raw))
    assert keys.check(None)


def test_a_key_is_named_by_its_index():
    keys = make_keys(api_key=("one", "two"))
    assert [keys.name_of(key) for key in ("one", "two", "wrong", "", None)] == ["key-1", "key-2", None, None, None]
    assert [make_keys().name_of(key) for key in ("one", None)] == [None, None]


@pytest.mark.parametrize(
    ("headers", "tenant"),
    [
        ({"authorization": "Bearer two"}, "key-2"),
        ({"x-api-key": "one"}, "key-1"),
        ({"authorization": "Bearer two", "x-api-key": "one"}, "key-2"),
        ({}, None),
    ],
)
def test_the_tenant_of_a_request_is_the_name_of_its_key(headers, tenant):
    assert sender_of(make_keys(api_key=("one", "two")), headers) == Sender(tenant, tenant or ADDRESS)
    assert sender_of(make_keys(), headers) == Sender(None, ADDRESS)


def test_keys_are_compared_as_digests_in_constant_time(monkeypatch):
    compared = []

    def compare(a, b):
        compared.append((a, b))
        return a == b

    monkeypatch.setattr(hmac, "compare_digest", compare)
    keys = make_keys(api_key=("one", "two", "three"))
    assert keys.check("one") and not keys.check("wrong")
    assert len(compared) == 6
    assert {len(digest) for pair in compared for digest in pair} == {32}


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
def test_the_account_of_an_ipv6_address_is_its_64_bit_prefix(address, account):
    assert account_of_address(address) == account


def make_connection(client: tuple[str, int] | None, **headers: str) -> HTTPConnection:
    named = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return HTTPConnection({"type": "http", "headers": named, "client": client})


def test_a_key_is_the_account_for_any_address():
    assert make_keys(api_key=("one", "two")).sender_of(make_connection(("192.0.2.7", 1)), "two") == ("key-2", "key-2")


def test_without_keys_the_account_is_the_peer_address_not_a_forwarded_header():
    forged = make_connection(("192.0.2.7", 1), x_forwarded_for="198.51.100.1", forwarded="for=198.51.100.1")
    assert make_keys().sender_of(forged) == (None, "192.0.2.7")


def test_a_connection_without_an_address_has_an_account_too():
    assert make_keys().sender_of(make_connection(None)) == (None, "")
