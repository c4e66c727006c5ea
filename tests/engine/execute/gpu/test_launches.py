"""The kernels of a captured step: few per layer, and none that is compiled at its replay."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache

import pytest

from tests.checkpoints import config_json

LAYERS = 16  # the fewest of the benchmark's models
# Besides its layers a step gathers, embeds, normalizes, selects logit rows, multiplies them, samples and advances.
ENDS = 11
# A decode step has the rows of logits as they are; where it is fused, their product takes in the norm of the last
# layer, which another step counts as a part of that layer.
DECODE_ENDS, FUSED_ENDS = 10, 9
MODEL = {
    "vocab_size": 151936, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": LAYERS,
    "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 32768,
    "torch_dtype": "bfloat16",
}  # fmt: skip


@pytest.fixture(scope="module")
def steps(tmp_path_factory):
    """Launches by settings and shape."""

    @cache
    def run(layers=LAYERS, **settings):
        folder = tmp_path_factory.mktemp("model")
        (folder / "config.json").write_text(json.dumps(config_json("Qwen3", **{**MODEL, "num_hidden_layers": layers})))
        environ = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
        command = [sys.executable, "-m", "tests.engine.execute.gpu.launches", str(folder), json.dumps(settings)]
        result = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=600)
        assert result.returncode == 0, result.stderr[-2000:]
        return [json.loads(line) for line in result.stdout.splitlines()]

    return run


def test_a_layer_has_nine_launches_and_six_with_few_rows(steps):
    reports = steps()
    assert len(reports) == 50
    for report in reports:
        num_rows, _, is_decode, _ = report["shape"]
        per_layer, ends = 10, ENDS  # with prompts attention has two kernels
        if is_decode:
            per_layer, ends = (6, FUSED_ENDS) if num_rows <= 16 else (9, DECODE_ENDS)
        assert sum(report["launches"].values()) == LAYERS * per_layer + ends, report
        assert report["new"] == 0, f"{report['shape']} would compile at its capture"
        assert report["plain"] == [], f"{report['shape']} has kernels that begin when the one before them has ended"


def test_in_a_steady_decode_of_256_few_programs_of_the_whole_step_are_without_work(steps):
    """Nobody asks for penalties, biases or log-probabilities: these kernels' programs only begin and end."""
    (programs,) = [report["programs"] for report in steps() if report["shape"] == [256, 256, True, 1]]
    idle = sum(count for name, count in programs.items() if "penalt" in name or "logprobs" in name)
    assert 0 < idle <= 0.05 * sum(programs.values())
    assert programs["_decode_kernel"] == LAYERS * 8 * 256


@pytest.mark.parametrize(
    "settings", [{"deterministic": True}, pytest.param({"kv_cache_dtype": "fp8"}, marks=pytest.mark.long)]
)
def test_no_setting_makes_steps_that_compile_later(steps, settings):
    for report in steps(layers=2, **settings):
        assert report["new"] == 0, report
