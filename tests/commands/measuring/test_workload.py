"""The requests of the benchmarks are the same in every run."""

import json

from app.checkpoint.inspection import inspect
from app.commands.measuring.workload import (
    MAX_NEW,
    MAX_PROMPT,
    MIN_NEW,
    MIN_PROMPT,
    SHAPES,
    random_workload,
    write_shape,
)
from app.config.settings import make_config


def test_a_seed_gives_the_same_load():
    assert random_workload(8, 100) == random_workload(8, 100)
    assert random_workload(8, 100) != random_workload(8, 100, seed=1)


def test_lengths_and_ids_stay_in_range():
    load = random_workload(200, 50)
    assert {len(prompt) for prompt in load.prompts} <= set(range(MIN_PROMPT, MAX_PROMPT + 1))
    assert set(load.num_new_tokens) <= set(range(MIN_NEW, MAX_NEW + 1))
    assert {token_id for prompt in load.prompts for token_id in prompt} == set(range(50))
    assert load.num_prompt_tokens == sum(map(len, load.prompts))


def test_first_returns_a_load_of_the_first_requests():
    load = random_workload(8, 100)
    assert load.first(3).prompts == load.prompts[:3]
    assert load.first(3).num_new_tokens == load.num_new_tokens[:3]


def test_every_shape_can_be_served(tmp_path):
    for name in SHAPES:
        folder = write_shape(name, tmp_path)
        spec = inspect(make_config({"model": str(folder), "load_format": "dummy"}).model).spec
        assert json.loads((folder / "config.json").read_text())["vocab_size"] == spec.vocab_size
