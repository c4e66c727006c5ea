"""The engine on a GPU: outputs of transformers, graphs that change no token, the same bits in any batch."""

from __future__ import annotations

import random

import pytest
import torch
from transformers import AutoModelForCausalLM

from app.contract.sampling_params import SamplingParams
from tests.checkpoints import tiny
from tests.gpu.driving import CUDA, build, build_on_cpu, capture_all, request, run_requests

LENGTHS = (1, 2, 3, 15, 16, 17, 31, 64, 100, 129, 200, 255)
MODELS = {
    "llama": ("Llama", {}),
    "llama-biases": ("Llama", {"attention_bias": True, "mlp_bias": True, "head_dim": 24, "num_key_value_heads": 1}),
    "mistral-window": ("Mistral", {"sliding_window": 37, "head_dim": 80}),
    "qwen2": ("Qwen2", {"head_dim": None, "tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {"head_dim": 128, "num_attention_heads": 16, "num_key_value_heads": 8}),
}


def prompts(seed: int, count: int = len(LENGTHS)) -> list[list[int]]:
    rng = random.Random(seed)
    return [rng.choices(range(4, 290), k=LENGTHS[index % len(LENGTHS)]) for index in range(count)]


@pytest.mark.parametrize("name", MODELS)
def test_greedy_float32_outputs_equal_those_of_transformers(name):
    """A token may differ only if transformers' logits of both tokens are nearly equal."""
    architecture, fields = MODELS[name]
    folder = tiny(architecture, **fields)
    given = prompts(1)
    engine = build(folder, num_kv_blocks=80)
    got = run_requests(engine, [request(engine, str(i), ids, max_tokens=24) for i, ids in enumerate(given)], apart=2)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").to(CUDA)
    num_ties = 0
    for index, prompt in enumerate(given):
        ids = prompt + got[str(index)]
        with torch.inference_mode():
            logits = model(torch.tensor([ids], device=CUDA)).logits[0, len(prompt) - 1 : -1]
        span = logits.max() - logits.min()
        chosen = logits.gather(1, torch.tensor(got[str(index)], device=CUDA)[:, None])[:, 0]
        gaps = (logits.max(-1).values - chosen) / span
        assert gaps.max() < 1e-5, f"prompt {index}: transformers would not have generated a token, gap {gaps.max():.2e}"
        num_ties += int((gaps > 0).sum())
    assert num_ties <= 1


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("run_ahead", [0, 1, 4])
def test_graphs_and_running_ahead_change_no_token(dtype, run_ahead):
    folder, given = tiny("Qwen3", head_dim=128), prompts(2, 24)
    params = {"temperature": 0.8, "top_p": 0.9, "max_tokens": 40}
    every = []
    for settings in ({"enforce_eager": True, "run_ahead": 0}, {"run_ahead": run_ahead}):
        engine = build(folder, dtype=dtype, **settings)
        if not settings.get("enforce_eager"):
            capture_all(engine)
        requests = [request(engine, str(i), ids, seed=i, **params) for i, ids in enumerate(given)]
        every.append(run_requests(engine, requests, apart=1))
    assert every[0] == every[1]


def test_all_kinds_of_sampling_are_the_same_with_graphs():
    folder, given = tiny("Llama"), prompts(3)
    kinds = [
        {}, {"temperature": 1.0}, {"temperature": 0.7, "top_k": 5}, {"temperature": 0.7, "top_p": 0.5},
        {"temperature": 1.5, "min_p": 0.2}, {"presence_penalty": 1.0}, {"frequency_penalty": 0.5, "temperature": 1.0},
        {"repetition_penalty": 1.3}, {"logit_bias": {7: 100.0}}, {"min_tokens": 9, "ignore_eos": False},
        {"logprobs": 5}, {"temperature": 0.9, "logprobs": 0, "repetition_penalty": 1.1},
    ]  # fmt: skip
    every = []
    for settings in ({"enforce_eager": True}, {}):
        engine = build(folder, **settings)
        capture_all(engine)
        requests = [
            request(engine, str(i), ids, **{"max_tokens": 24, "seed": i, **kind})
            for i, (ids, kind) in enumerate(zip(given, kinds, strict=True))
        ]
        every.append(run_requests(engine, requests, apart=1))
    assert every[0] == every[1]
    assert set(every[0]["8"]) == {7}


def test_tokens_sampled_on_the_gpu_are_those_of_the_cpu():
    """Sampled float32 outputs: logits are equal within rounding, so nearly all tokens are the same."""
    folder, given = tiny("Llama"), prompts(4)
    every = []
    for build_one in (build, build_on_cpu):
        engine = build_one(folder)
        requests = [request(engine, str(i), ids, temperature=1.0, top_p=0.95, seed=i) for i, ids in enumerate(given)]
        every.append(run_requests(engine, requests))
    same = sum(every[0][name] == every[1][name] for name in every[0])
    assert same >= len(given) - 1


@pytest.mark.parametrize("name", ["qwen3", "mistral-window"])
def test_deterministic_outputs_do_not_depend_on_the_batch(name):
    """With bfloat16 and sampling, a single different bit changes some of the tokens."""
    architecture, fields = MODELS[name]
    folder, given = tiny(architecture, **fields), prompts(5, 24)
    params = {"temperature": 1.0, "max_tokens": 48}

    def run(which, **settings):
        engine = build(folder, dtype="bfloat16", deterministic=True, **settings)
        requests = [request(engine, str(i), given[i], seed=i, **params) for i in which]
        first = run_requests(engine, requests, apart=1)
        warm = run_requests(engine, [request(engine, f"again {i}", given[i], seed=i, **params) for i in which])
        assert all(warm[f"again {i}"] == first[str(i)] for i in which), "a warm cache changes an output"
        return first

    together = run(range(len(given)))
    small_pool = run(range(len(given)), num_kv_blocks=48, max_num_batched_tokens=64)
    assert small_pool == together
    for alone in (0, 5, 11, 17):
        assert run([alone])[str(alone)] == together[str(alone)]


def test_an_fp8_cache_gives_nearly_the_same_outputs():
    if torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("fp8 needs compute capability 8.9")
    folder, given = tiny("Qwen3", head_dim=64), prompts(6)
    texts = []
    for cache in ("auto", "fp8"):
        engine = build(folder, dtype="bfloat16", kv_cache_dtype=cache)
        texts.append(run_requests(engine, [request(engine, str(i), ids, max_tokens=4) for i, ids in enumerate(given)]))
    first = [texts[0][name][0] == texts[1][name][0] for name in texts[0]]
    assert sum(first) >= len(first) * 2 // 3


def test_swapped_sequences_continue_with_the_same_tokens():
    folder, given = tiny("Llama"), prompts(7)
    every = []
    for settings in ({}, {"num_kv_blocks": 40, "swap_space": "64MiB"}):
        engine = build(folder, **settings)
        requests = [request(engine, str(i), ids, max_tokens=60) for i, ids in enumerate(given)]
        every.append(run_requests(engine, requests))
    assert every[0] == every[1] and engine.stats().preemption.num_preemptions > 0


def test_beams_and_drafts_work_on_the_gpu():
    folder = tiny("Llama")
    every = []
    for build_one in (build, build_on_cpu):
        engine = build_one(folder, speculative_ngram=4)
        requests = [
            request(engine, "draft", [5, 6, 7, 8] * 12, max_tokens=40),
            request(engine, "beams", list(range(10, 60)), max_tokens=12, use_beam_search=True, beam_width=3, n=3),
        ]
        every.append(run_requests(engine, requests))
    assert every[0] == every[1]


def test_an_engine_with_default_memory_works():
    # More than the other processes of the tests have taken, and less than would leave them nothing.
    engine = build(tiny("Llama"), num_kv_blocks=None, gpu_memory_utilization=0.4)
    assert engine.model_info.kv_capacity_tokens > 10_000
    given = request(engine, "one", [5, 6, 7], max_tokens=8)
    assert len(run_requests(engine, [given])["one"]) == 8 and isinstance(given.params, SamplingParams)
