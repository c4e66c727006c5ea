"""Clients that disconnect at random times leave no blocks, tasks or descriptors."""

import pytest

from benchmarks.resets import run_vanishing_clients


@pytest.mark.parametrize("count", [160, pytest.param(10_000, marks=pytest.mark.long)])
async def test_vanishing_clients_leave_no_block_task_or_descriptor(count: int):
    result = await run_vanishing_clients(count)
    assert result[1:] == (0, 0, 0)
    assert len(result.leavings) > count / 2
    assert all(leaving.latency_ms >= 0 for leaving in result.leavings)
