"""The pictures that are shown to watchers, with nothing beside: those of an engine that decodes."""

from array import array
from itertools import pairwise

from app import LLM
from benchmarks.live.engine_cells import Cell, pool_cell
from benchmarks.live.picture_process import make_pictures


def open_guide():
    return LLM("guide", max_model_len=2048, num_kv_blocks=300).engine


def test_the_pictures_that_are_shown_are_of_a_batch_that_decodes():
    pictures, spent_s = make_pictures(Cell(open_guide, batch=2, num_prompt=8, num_steps=200), 3)
    assert len(pictures) == 3 and spent_s >= sum(picture.duration_s for picture in pictures)
    assert all(len(picture.groups) == 2 for picture in pictures)
    assert all(earlier.time < later.time for earlier, later in pairwise(pictures))


def test_pictures_of_a_pool_show_that_most_of_it_is_used():
    pictures, _ = make_pictures(pool_cell(1000), 2)
    assert all(picture.num_blocks == 1000 for picture in pictures)
    references = [array("H", picture.references) for picture in pictures]
    assert all(len(each) == 1001 and len(each) - each.count(0) > 700 for each in references)
