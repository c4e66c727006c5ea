"""The benchmark `growth`: what it makes of what a server held."""

import pytest

from benchmarks.__main__ import main
from benchmarks.growth import BATCH, COUNTS, judged, line


def held(kib_per_batch: float, **more: int) -> list[dict[str, float]]:
    counts = dict.fromkeys(COUNTS, 10)
    return [
        {**counts, "rss_kib": 50_000 + kib_per_batch * number, **(more if number == 39 else {})} for number in range(40)
    ]


def test_memory_that_rises_is_found():
    slow, fast = 0.5 * 1024 * BATCH / 100_000, 1.5 * 1024 * BATCH / 100_000
    assert [verdict.is_met for verdict in judged(held(slow))] == [True] * 5
    assert judged(held(fast))[0].figure == pytest.approx(1.5)
    assert not judged(held(fast))[0].is_met


def test_a_task_that_is_left_is_found():
    assert [verdict.limit.name for verdict in judged(held(0, tasks=11)) if verdict.is_missed] == ["more tasks"]


def test_the_error_of_a_line_is_that_of_its_rest():
    assert line([1, 3, 5, 7]) == (2, 0)
    assert line([0, 1, 0, 1])[1] > 0


def test_too_few_requests_are_refused(capsys):
    assert main(["growth", "--requests", "10"]) == 2
    assert "--requests must be at least 50,000" in capsys.readouterr().err
