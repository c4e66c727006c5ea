"""What a picture takes with nothing beside: of a server of its own, beside those who watch it."""

from pathlib import Path

import pytest

from benchmarks.live import unit_costs
from benchmarks.live.served import NUM_WATCHERS, WATCHER, WATCHERS
from benchmarks.live.unit_costs import measure


@pytest.mark.long
def test_sixteen_watchers_take_more_of_the_event_loop_than_one(tmp_path: Path, monkeypatch):
    for name, number in (("NUM_PICTURES", 2), ("NUM_STEPS", 5), ("NUM_SAMPLES", 3), ("POOLS", (1000,))):
        monkeypatch.setattr(unit_costs, name, number)
    found = measure(tmp_path)
    assert [*found.loop_ms] == [*NUM_WATCHERS] and found.engine_ms > 0
    assert [*found.pool_loop_ms] == ["1,000"]
    assert 0 < found.loop_ms[WATCHER] < found.loop_ms[WATCHERS]
