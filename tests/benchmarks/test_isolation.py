"""The benchmark `isolation`: its verdicts, and a run against a server."""

import asyncio
from unittest.mock import Mock

import pytest

from benchmarks.__main__ import main
from benchmarks.attacks import ATTACKS
from benchmarks.isolation import GoodClient, Medians, Row, lag_quantile, verdicts_of
from benchmarks.server_process import ServerProcess


def row(itl_p99_s: float, livez_p99_s: float = 0.01) -> Row:
    return Row(itl_p99_s, 1.0, livez_p99_s, 0.0, 100, {})


def is_within(rows: list[Row], quiet: list[Row]) -> bool:
    return all(verdict.is_met for verdict in verdicts_of(Medians.of(rows), Medians.of(quiet), "x"))


def test_the_limit_is_twice_the_quiet_time_and_one_and_a_half_targets():
    quiet = [row(0.01), row(0.02), row(0.5)]
    assert is_within([row(0.1), row(0.114), row(9.0)], quiet)
    assert not is_within([row(0.0), row(0.116), row(0.116)], quiet)
    assert not is_within([row(0.01, livez_p99_s=0.11)], quiet)


def test_lags_are_those_between_two_readings():
    before, after = [(0.01, 5.0), (0.1, 5.0), (float("inf"), 6.0)], [(0.01, 5.0), (0.1, 104.0), (float("inf"), 106.0)]
    assert lag_quantile(before, after, 0.99) == 0.1
    assert lag_quantile(before, before, 0.99) == 0.0


async def test_the_good_client_reads_on_until_a_stream_fails():
    answers = iter(["data: 1\n\ndata: [DONE]\n\n", "data: 2\n\n"])

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        text = next(answers)
        writer.write(f"HTTP/1.1 200 OK\r\ncontent-length: {len(text)}\r\n\r\n{text}".encode())
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        good = GoodClient(ServerProcess(server.sockets[0].getsockname()[1], Mock()))
        with pytest.raises(RuntimeError, match=r"the stream has failed: 200 .*data: 2"):
            await good.read_stream()
    assert len(good._stream.times) == 2


@pytest.mark.long
def test_a_server_is_measured_beside_an_attacking_client(capsys):
    code = main(["isolation", "--models", "long", "--only", "brackets", "--rounds", "1", "--seconds", "1"])
    assert code in (0, 1)  # depends on the speed of this machine
    output = capsys.readouterr().out
    lines = [line for line in output.splitlines() if line.startswith("long: ")]
    assert [ATTACKS[name].what in line for name, line in zip(("idle", "brackets"), lines, strict=True)] == [True, True]
    assert "Error" not in output
    assert set(ATTACKS) > {"idle", "brackets"}
