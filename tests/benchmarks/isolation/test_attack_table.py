"""The table of attacks: each one reaches the server that it is given, and has what a row needs."""

import asyncio
from contextlib import suppress
from ipaddress import ip_network

import pytest
from websockets.exceptions import WebSocketException

from benchmarks.isolation.attack_client import Client
from benchmarks.isolation.attack_table import ATTACKS, QUIET, source_of
from benchmarks.isolation.attacker import MAX_RUNS
from benchmarks.isolation.setups import PLAIN
from tests.benchmarks.isolation.attack_server import REJECTED, attack_server
from tests.server.processes import HANG_S


@pytest.mark.parametrize("name", sorted({*ATTACKS} - {QUIET}))
async def test_an_attack_reaches_the_server(name: str):
    async with attack_server(REJECTED) as server:
        client = Client(f"http://127.0.0.1:{server.port}", 4096)
        attack = asyncio.create_task(_until_refused(name, client))
        reached = server.is_connected if name == "idle_connections" else server.is_reached
        waiting = asyncio.create_task(reached.wait())
        async with asyncio.timeout(HANG_S):
            await asyncio.wait([attack, waiting], return_when=asyncio.FIRST_COMPLETED)
            if attack.done():
                attack.result()
            await waiting
        attack.cancel()
        with suppress(asyncio.CancelledError):
            await attack
    assert all(head.split()[0] in (b"GET", b"POST", b"HEAD", b"DELETE") for head in server.heads)


async def _until_refused(name: str, client: Client) -> None:
    with suppress(OSError, EOFError, WebSocketException):
        await ATTACKS[name].run(client)


def test_attacks_are_bounded_and_told_apart():
    assert all(0 < attack.num_workers <= MAX_RUNS for attack in ATTACKS.values())
    assert len({attack.what for attack in ATTACKS.values()}) == len(ATTACKS)


def test_attackers_of_a_shared_server_are_told_apart():
    """What one has sent must not count for the next: with a used-up allowance it would get 429s, and harm nobody."""
    sources = [source_of(name) for name, attack in ATTACKS.items() if attack.setup.source == PLAIN.source]
    assert len({*sources}) == len(sources) > 60 and "127.0.0.1" not in sources
    assert all(ip_network(source_of(name)).is_loopback for name in ATTACKS if name != "ipv6_64")
