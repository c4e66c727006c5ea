"""The speed of one answer is bounded by what a token reads of the weights."""

from __future__ import annotations

import pytest

from app.commands import best_speed as module
from app.commands.best_speed import MIN_BYTES, BestSpeed, best_speed
from app.config.setting import GIB


@pytest.mark.parametrize(
    ("active_bytes", "text"), [(10**9, "50 tokens/s"), (8 * 10**9, "6.2 tokens/s"), (10**7, "5,000 tokens/s")]
)
def test_the_bound_is_bandwidth_over_active_bytes(active_bytes: int, text: str):
    speed = BestSpeed(active_bytes, 5e10)
    assert (speed.tokens_per_second, str(speed)) == (5e10 / active_bytes, text)


def test_what_caches_hold_has_no_bound(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "memory_speed", lambda: 5e10)
    assert best_speed(MIN_BYTES - 1) is None
    assert best_speed(MIN_BYTES) == BestSpeed(MIN_BYTES, 5e10)


def test_a_system_without_memory_has_no_figure(monkeypatch: pytest.MonkeyPatch):
    def refuse() -> float:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(module, "memory_speed", refuse)
    assert best_speed(GIB) is None
    monkeypatch.setattr(module, "memory_speed", lambda: 5e10)
    monkeypatch.setattr(module, "free_memory", lambda: GIB)
    monkeypatch.setattr(module, "measured_bytes", lambda: GIB // 2)
    assert best_speed(GIB) is not None
    monkeypatch.setattr(module, "measured_bytes", lambda: GIB // 2 + 1)
    assert best_speed(GIB) is None
