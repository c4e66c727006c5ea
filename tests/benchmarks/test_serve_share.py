"""The clients of the benchmark read streams to their end, and reject one that is too short."""

import pytest

from benchmarks.serve_share import stream
from benchmarks.server_process import ServerProcess
from tests.loadgen.fakes import DONE, FINISH, chunked, rejection, serving, text, usage


def of(url: str) -> ServerProcess:
    """A client of a server that is already running."""
    return ServerProcess(int(url.rpartition(":")[2]), None)


async def test_a_stream_is_read_to_its_end():
    async with serving(chunked(text(), FINISH, usage(3, 7), DONE)) as server:
        await stream(of(server.url), [1, 2, 3], 7)
    (body,) = server.bodies
    assert (body["prompt"], body["max_tokens"], body["stream"]) == ([1, 2, 3], 7, True)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (chunked(text(), usage(3, 7), is_complete=False), "rejected or truncated"),
        (chunked(text(), usage(3, 6), DONE), "ended early"),
        (rejection(), "status 503"),
    ],
)
async def test_a_truncated_short_or_rejected_stream_fails(answer, says):
    async with serving(answer) as server:
        with pytest.raises((AssertionError, RuntimeError), match=says):
            await stream(of(server.url), [1], 7)
