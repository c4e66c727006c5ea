"""The device samples for all sampling parameters; the host samples only beams."""

from __future__ import annotations

import pytest

from app import LLM, SamplingParams
from app.kernels.cpu.library import load_library
from tests.checkpoints import real_size

PARAMS = {
    "plain": {},
    "greedy": {"temperature": 0.0},
    "filters": {"temperature": 2.0, "top_k": 1000, "top_p": 0.95, "min_p": 0.01},
    "repetition": {"repetition_penalty": 1.2},
    "presence": {"presence_penalty": 0.5},
    "frequency": {"frequency_penalty": -0.5, "temperature": 0.0},
    "bias": {"logit_bias": dict.fromkeys(range(300), 1.0)},
    "minimum length": {"min_tokens": 4, "stop_token_ids": [5]},
    "logprobs": {"logprobs": 20},
    "ranked": {"n": 2, "best_of": 3},
}
ALL = {name: value for params in PARAMS.values() for name, value in params.items() if name not in ("n", "best_of")}


@pytest.fixture(scope="module")
def llm() -> LLM:
    """A model with a vocabulary of 151,936."""
    if load_library() is None:
        pytest.skip("no native kernels here")
    return LLM(str(real_size("wide")), load_format="dummy", max_num_seqs=8, max_model_len=64, num_kv_blocks=64)


@pytest.mark.parametrize("params", [*PARAMS.values(), {**ALL, "temperature": 1.0}], ids=[*PARAMS, "all"])
def test_the_step_samples_all_tokens(llm: LLM, params: dict[str, object]):
    before = llm.engine.runner.num_host_samples
    (output,) = llm.generate([{"prompt_token_ids": [5, 6, 7]}], SamplingParams(max_tokens=6, **params), use_tqdm=False)
    assert llm.engine.runner.num_host_samples == before
    assert all(len(each.token_ids) == 6 for each in output.outputs)


def test_an_output_is_the_same_alone_and_in_a_batch(llm: LLM):
    """Rows of all kinds in one step have the same tokens and bitwise the same log-probabilities."""
    params = [SamplingParams(**{"seed": 3, "max_tokens": 8, **given}) for given in (*PARAMS.values(), ALL)]
    prompts = [{"prompt_token_ids": list(range(5 + number, 25))} for number in range(len(params))]
    alone = [llm.generate([prompt], each, use_tqdm=False)[0] for prompt, each in zip(prompts, params, strict=True)]
    together = llm.generate(prompts, params, use_tqdm=False)
    assert [each.outputs for each in together] == [each.outputs for each in alone]


def test_beams_are_sampled_by_the_host(llm: LLM):
    before = llm.engine.runner.num_host_samples
    llm.beam_search([{"prompt_token_ids": [5, 6, 7]}], beam_width=3, max_tokens=4, use_tqdm=False)
    assert llm.engine.runner.num_host_samples > before
