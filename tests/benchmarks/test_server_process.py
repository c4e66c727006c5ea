"""Server processes: they listen, become ready, respond, and end with the block."""

import asyncio
import os

import pytest

from benchmarks.server_process import listening, serving
from tests.server.processes import HANG_S

QUESTION = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "stream": True}


def test_a_server_is_ready_responds_and_ends():
    with serving() as server:
        assert asyncio.run(server.client().get("/readyz")).status == 200
        asyncio.run(server.wait_for_token("/v1/chat/completions", QUESTION))
        server.reset_peak()
        resident = server.resident()
        assert server.peak() >= resident > 1 << 20
        pid = server.pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.long
def test_the_output_of_a_server_is_returned_at_its_end():
    with listening("--timings") as server:
        assert asyncio.run(server.wait_until_ready()) > 0
        assert any("model" in line for line in server.end())


def test_a_server_that_does_not_start_is_an_error_with_its_output(tmp_path):
    with pytest.raises(RuntimeError, match=r"did not start.*--no-such"), listening("--no-such", log=tmp_path / "log"):
        raise AssertionError


@pytest.mark.long
def test_a_response_without_a_token_is_an_error():
    with serving() as server, pytest.raises(RuntimeError, match="empty: 404"):
        asyncio.run(server.wait_for_token("/v1/nothing", {}))


@pytest.mark.long
def test_a_server_over_ipv6_with_a_log_that_nobody_reads_ends_on_sigterm():
    with listening("--host", "::1", is_log_read=False) as server:
        asyncio.run(server.wait_until_ready())
        assert server.target.url == f"http://[::1]:{server.port}"
        assert server.exit_code() is None
        assert 0 < server.terminate(HANG_S) < HANG_S
        assert server.exit_code() == 0
