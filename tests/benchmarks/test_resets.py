"""Clients that vanish at random moments leave nothing behind; how soon, the benchmark says."""

import pytest

from benchmarks.resets import come_and_go


@pytest.mark.parametrize("count", [160, pytest.param(10_000, marks=pytest.mark.long)])
async def test_clients_that_vanish_leave_no_block_task_or_descriptor(count: int):
    result = await come_and_go(count)
    assert result[1:] == (0, 0, 0)
    assert len(result.leavings) > count / 2
    assert all(leaving.latency_ms >= 0 for leaving in result.leavings)
