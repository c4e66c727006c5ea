"""The pictures that are shown to watchers, with nothing beside: those of an engine that decodes."""

from itertools import pairwise

from app import LLM
from benchmarks.live import picture_process
from benchmarks.live.engine_cells import Cell
from benchmarks.live.picture_process import make_pictures


def open_guide():
    return LLM("guide", max_model_len=2048, num_kv_blocks=300).engine


def test_the_pictures_that_are_shown_are_of_a_batch_that_decodes(monkeypatch):
    monkeypatch.setattr(picture_process, "CELL", Cell(open_guide, batch=2, num_prompt=8, num_steps=200))
    pictures, spent_s = make_pictures(open_guide(), 3)
    assert len(pictures) == 3 and spent_s >= sum(picture.duration_s for picture in pictures)
    assert all(len(picture.groups) == 2 for picture in pictures)
    assert all(earlier.time < later.time for earlier, later in pairwise(pictures))
