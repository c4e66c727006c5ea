"""No step of a request launches a kernel that was not compiled before the server was ready."""

from __future__ import annotations

import json

import pytest

from tests.checkpoints import config_json
from tests.engine.execute.gpu.programs import run_program
from tests.engine.execute.gpu.test_launches import MODEL

STEPS, MANY_STEPS = 300, 20_000
# A small cache, so that blocks are swapped.
SMALL = {"max_model_len": 4096, "num_kv_blocks": 1200, "swap_space": 1 << 30}
SETTINGS = {
    "plain": {},
    "drafts": {"speculative_ngram": 4},
    "deterministic": {"deterministic": True},
    "fp8, long steps, no graphs": {"kv_cache_dtype": "fp8", "max_num_batched_tokens": 4096, "enforce_eager": True},
    "few sequences": {"max_num_seqs": 5, "max_num_batched_tokens": 100, "block_size": 32},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The folder of a model of which only the shape is known."""
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text(json.dumps(config_json("Qwen3", **{**MODEL, "num_hidden_layers": 2})))
    return folder


def check(report, *wanted: str) -> None:
    """Nothing was compiled after the start, and the script met what it is there for."""
    assert len(report["compiled"]) >= 15
    assert report["by the start"] == [], "a start needs kernels that the processes beside it do not compile"
    assert report["by steps"] == [], "requests would have waited for the compiler"
    counts = report["counts"]
    assert counts["faults"] == 0
    assert [name for name in (*wanted, "decode steps", "mixed steps") if not counts[name]] == []


@pytest.mark.parametrize("name", ["plain", pytest.param("drafts", marks=pytest.mark.long)])
def test_an_hour_of_mixed_requests_in_short_compiles_nothing(model, name):
    report = run_program("served_steps", model, json.dumps({**SMALL, **SETTINGS[name]}), STEPS)
    check(report, "blocks copied", "blocks swapped", *(["samples of drafts"] if name == "drafts" else []))
    assert report["counts"]["shapes"] >= 8


@pytest.mark.long
@pytest.mark.timeout(3600)  # a minute each on a free core
@pytest.mark.parametrize("name", SETTINGS)
def test_an_hour_of_mixed_requests_compiles_nothing(model, name):
    check(run_program("served_steps", model, json.dumps({**SMALL, **SETTINGS[name]}), MANY_STEPS), "blocks swapped")
