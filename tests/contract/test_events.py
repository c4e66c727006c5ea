"""The events of requests: sums of token counts."""

from __future__ import annotations

from dataclasses import astuple, fields

from app.contract.events import Usage, total_usage


def test_total_usage_adds_every_count() -> None:
    counts = range(1, 1 + len(fields(Usage)))
    assert astuple(total_usage([Usage(*counts), Usage(*counts)])) == tuple(2 * count for count in counts)
    assert total_usage([]) == Usage(0, 0)
