"""What a picture takes with nothing beside: of a server of its own, beside those who watch it."""

from itertools import pairwise
from pathlib import Path

from app import LLM
from benchmarks.live import picture_process, unit_costs
from benchmarks.live.engine_cells import Cell
from benchmarks.live.picture_process import make_pictures
from benchmarks.live.served import NUM_WATCHERS, WATCHER, WATCHERS
from benchmarks.live.unit_costs import measure


def open_guide():
    return LLM("guide", max_model_len=512, num_kv_blocks=80).engine


def test_the_pictures_that_are_shown_are_of_a_batch_that_decodes(monkeypatch):
    monkeypatch.setattr(picture_process, "CELL", Cell(open_guide, batch=2, num_prompt=8, num_steps=3))
    pictures, spent_s = make_pictures(open_guide(), 3)
    assert len(pictures) == 3 and spent_s >= sum(picture.duration_s for picture in pictures)
    assert all(len(picture.groups) == 2 for picture in pictures)
    assert all(earlier.time < later.time for earlier, later in pairwise(pictures))


def test_sixteen_watchers_take_more_of_the_event_loop_than_one(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(unit_costs, "NUM_SAMPLES", 3)
    found = measure(tmp_path)
    assert [*found.loop_ms] == [*NUM_WATCHERS] and found.engine_ms > 0
    assert 0 < found.loop_ms[WATCHER] < found.loop_ms[WATCHERS]
