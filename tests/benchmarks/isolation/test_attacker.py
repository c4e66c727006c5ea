"""The attacking process ends with its input, and fails if an attack is wrong."""

import json
import subprocess
import sys

import pytest

from benchmarks.isolation.attack_client import Client
from benchmarks.isolation.attacker import repeat
from tests.server.processes import HANG_S

URL = "http://127.0.0.1:9"


async def test_an_attack_is_repeated_a_bounded_number_of_times_whatever_the_server_does():
    client, runs = Client(URL, 4096), []

    async def run(given: Client) -> None:
        runs.append(given)
        raise ConnectionResetError

    await repeat(client, run, 3)
    assert runs == [client] * 3
    assert client.answers == {"ConnectionResetError": 3}


async def test_a_mistake_in_an_attack_ends_it():
    async def run(client: Client) -> None:
        raise KeyError("tokens")

    with pytest.raises(KeyError):
        await repeat(Client(URL, 4096), run, 3)


@pytest.mark.parametrize("begins", [True, False])
def test_the_process_ends_with_its_input(begins: bool):
    found = subprocess.run(
        [sys.executable, "-m", "benchmarks.isolation.attacker", "idle", URL, "4096", "127.0.0.2"],
        input="begin\n" * begins, capture_output=True, text=True, timeout=HANG_S,
    )  # fmt: skip
    assert (found.returncode, found.stderr) == (0, "")
    first, *others = found.stdout.splitlines()
    assert first == "ready"
    assert [json.loads(line) for line in others[-1:]] in ([[{"nothing": 2}], [{}]] if begins else [[]])
