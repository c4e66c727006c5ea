"""Measuring a row: what ends it early, and the loop's lag."""

import asyncio

import pytest

from benchmarks.isolation import row
from benchmarks.isolation.row import MAX_GROWTH_BYTES, Row, beside, lag_quantile, watch


def test_lags_are_those_between_two_readings():
    before, after = [(0.01, 5.0), (0.1, 5.0), (float("inf"), 6.0)], [(0.01, 5.0), (0.1, 104.0), (float("inf"), 106.0)]
    assert lag_quantile(before, after, 0.99) == 0.1
    assert lag_quantile(before, before, 0.99) == 0.0


async def test_what_fails_beside_ends_the_wait():
    async def fail() -> None:
        raise RuntimeError("the stream has failed")

    with pytest.raises(RuntimeError, match="the stream has failed"):
        await beside([asyncio.create_task(fail())], asyncio.Event().wait())


async def test_what_is_awaited_is_returned_while_tasks_go_on():
    task = asyncio.create_task(asyncio.sleep(3600))
    assert await beside([task], asyncio.sleep(0, "found")) == "found"
    assert not task.done()
    task.cancel()


async def test_a_server_that_takes_too_much_memory_is_ended(monkeypatch):
    monkeypatch.setattr(row, "LOOK_EVERY_S", 0)
    grown = iter([0, MAX_GROWTH_BYTES, MAX_GROWTH_BYTES + 1])

    class Growing:
        def observe(self) -> int:
            return next(grown)

    with pytest.raises(RuntimeError, match=r"took 3\.0 GiB more memory"):
        await watch(Growing())


def test_a_row_says_what_was_measured():
    found = Row(0.01, 0.02, 0.003, 0.004, 0.1, None, 0.2, 0.01, 5 << 20, 100, {"400": 3})
    text = "itl 10.0, longest 20; livez 3.0, longest 4; chat 100, embedding 200 ms; memory +5 MiB"
    assert str(found) == f"{text}; {{'400': 3}}"
    ended = found._replace(kept_bytes=2_000_000, back_s=0.5, exit_s=1.25)
    assert str(ended) == f"{text}, +2 MB after 0.5 s, SIGTERM 1.2 s; {{'400': 3}}"
    without = found._replace(itl_p99_s=None, itl_max_s=None)
    assert str(without) == f"{text.partition('; ')[2]}; {{'400': 3}}"
