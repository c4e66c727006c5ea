"""The benchmark of pictures compares turns of the same work, and counts the pictures of those that are watched."""

import time

import pytest

from app import LLM
from benchmarks.idle_engine import IdleEngine
from benchmarks.live import engine_cells
from benchmarks.live.engine_cells import BusyRunner, Cell, Found, Step, measure, start, turns


def open_guide():
    return LLM("guide", max_model_len=512, num_kv_blocks=80).engine


def test_a_cell_is_measured_with_new_sequences_in_each_repeat(monkeypatch):
    monkeypatch.setattr(engine_cells, "SETTLE", 1)
    engine = open_guide()
    found = measure(engine, Cell(open_guide, batch=2, num_prompt=8, num_steps=3, num_turns=1), repeats=2)
    assert len(found.shares) == len(found.token_us) == 2 and min(found.token_us) > 0
    assert len(found.turns) == 4 and min(found.recording_s) > 0
    assert found.watched_s > 0 and len(found.picture_ms) <= sum(map(len, found.turns))
    assert engine.view is None and not engine.has_ready_work


def test_the_model_of_the_large_pool_keeps_its_thread_busy():
    idle = IdleEngine(num_blocks=64, max_num_seqs=4, max_tokens=64, max_model_len=400)
    idle.engine.runner = runner = BusyRunner(idle.engine.runner)
    start(idle.engine, Cell(lambda: idle.engine, batch=2, num_prompt=32, num_steps=1), 0)
    assert runner.seconds == engine_cells.STEP_S
    began = time.thread_time()
    turns(idle.engine, Cell(lambda: idle.engine, batch=2, num_prompt=32, num_steps=2))
    assert time.thread_time() - began >= 2 * engine_cells.STEP_S


def test_what_pictures_take_is_counted_by_the_steps_around_them():
    """A picture takes 4 and makes the next step 1 longer, in a hundred steps of 10, one of which is recording."""
    turn = [Step(10.0, None)] * 40 + [Step(14.0, 3.0), Step(11.0, None)] + [Step(10.0, None)] * 58
    assert Found(turns=[turn], recording_s=[1.0]).counted == pytest.approx((100 * 1 + 4 + 1) / (100 * 9))


def test_without_a_picture_nothing_is_counted():
    assert Found(turns=[[Step(10.0, None)] * 3], recording_s=[1.0]).counted is None
