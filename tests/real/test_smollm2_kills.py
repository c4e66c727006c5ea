"""A real, small model whose server is killed in the middle of answers of all kinds, among them calls of tools."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.checkpoint.hub import smollm2
from benchmarks.chaos.killing import kill_at
from benchmarks.chaos.points import Point, Situation
from benchmarks.resuming.asked import CASES, requests
from benchmarks.resuming.oracle import Oracle
from benchmarks.server_process import listening

pytestmark = pytest.mark.real
MODEL = "smollm2"


async def test_every_answer_goes_on_with_the_same_bytes(tmp_path: Path):
    if not smollm2.local_file().exists():
        pytest.skip("there is no real model; run `make real-model`")
    asked = [*requests(2 * len(CASES), max_tokens=40)]
    oracle = Oracle()
    with listening(MODEL) as server:
        await server.wait_until_ready()
        await oracle.learn(asked, server.target)
    assert any(oracle.whole(each).choices[0].calls for each in asked)
    point = Point(1, Situation.MIDDLE, num_tokens=oracle.num_tokens(asked) // 2)
    outcome = await kill_at(point, MODEL, asked, oracle, tmp_path)
    assert outcome.faults == []
    assert outcome.num_continued > 0
