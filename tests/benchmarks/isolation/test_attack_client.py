"""The attacking client: whom it attacks, as whom, and what it counts."""

import pytest

from benchmarks.isolation.attack_client import Client
from tests.benchmarks.isolation.attack_server import REJECTED, attack_server


@pytest.mark.parametrize("url", ["http://192.0.2.1:8000", "http://[2001:db8::1]:8000", "http://10.0.0.1:80"])
def test_only_servers_on_loopback_addresses_are_attacked(url: str):
    with pytest.raises(ValueError, match="only a server on a loopback address"):
        Client(url, 4096)


async def test_connections_come_from_different_addresses_of_a_network():
    async with attack_server(REJECTED) as server:
        client = Client(f"http://127.0.0.1:{server.port}", 4096, source="127.1.0.0/16")
        for _ in range(20):
            await client.post("/v1/nothing", b"{}")
    assert len(set(server.peers)) > 1
    assert all(peer.startswith("127.1.") for peer in server.peers)
    assert client.answers == {"400": 20}


async def test_an_attacker_with_a_key_sends_it_and_one_without_sends_none():
    async with attack_server(REJECTED) as server:
        for key in ("attacker", None):
            await Client(f"http://127.0.0.1:{server.port}", 4096, key=key).post("/v1/nothing", b"{}")
    assert [b"authorization: Bearer attacker\r\n" in head for head in server.heads] == [True, False]


async def test_a_client_hangs_up_in_time():
    async with attack_server(b"") as server:
        client = Client(f"http://127.0.0.1:{server.port}", 4096)
        assert await client.post("/v1/nothing", b"{}", within_s=60) == b""
    assert client.answers == {"cut": 1}
    async with attack_server(REJECTED) as server:
        client = Client(f"http://127.0.0.1:{server.port}", 4096)
        assert await client.post("/v1/nothing", b"{}", within_s=0) == b""
    assert client.answers == {"hung up": 1}


async def test_what_prepares_an_attack_is_not_counted():
    async with attack_server(REJECTED) as server:
        client = Client(f"http://127.0.0.1:{server.port}", 4096)
        assert await client.ask("/tokenize", b"{}") == b"{}"
    assert client.answers == {} and not client.is_answered.is_set()
