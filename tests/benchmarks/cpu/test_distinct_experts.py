"""Experts are counted step by step, and counting changes no token."""

import pytest

from app.contract.sampling_params import SamplingParams
from app.kernels.cpu.compiling import supported_sets
from app.kernels.cpu.native_ops import Program
from app.llm import LLM
from benchmarks.cpu.distinct_experts import counted
from tests.checkpoints import tiny

pytestmark = pytest.mark.skipif(not supported_sets(), reason="there are no native kernels for this machine")
PROMPTS = [[5, 9, 2], [7, 1, 30, 4], [8]]


def test_the_experts_of_each_layer_are_counted_and_no_token_changes():
    llm = LLM(str(tiny("Mixtral", num_local_experts=6)), dtype="float32", max_model_len=64)
    params = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
    plain = [output.outputs[0].token_ids for output in llm.generate(PROMPTS, params, use_tqdm=False)]
    replay = Program.replay
    with counted() as steps:
        found = [output.outputs[0].token_ids for output in llm.generate(PROMPTS, params, use_tqdm=False)]
    llm.close()
    assert found == plain and Program.replay is replay
    assert sum(num_tokens for num_tokens, _ in steps) >= 3 * 5
    for num_tokens, counts in steps:
        assert len(counts) == 2  # layers
        assert all(2 <= count <= min(6, 2 * num_tokens) for count in counts)


def test_a_dense_model_has_nothing_to_count():
    llm = LLM(str(tiny("Llama")), dtype="float32", max_model_len=64)
    with counted() as steps:
        llm.generate(PROMPTS, SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True), use_tqdm=False)
    llm.close()
    assert steps and all(counts == [] for _, counts in steps)
