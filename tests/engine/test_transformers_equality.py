"""Greedy float32 outputs equal those of transformers, token for token.

A token may differ only in a tie: transformers' logits of both tokens differ by less than 1e-5 of the range of all
logits. Ties are counted, and the output continues with transformers' token. Every case runs 16 prompts with staggered
arrivals in a pool so small that sequences are preempted.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from app.engine.engine import Engine
from tests.checkpoints import ARCHITECTURES, tiny
from tests.engine.driving import LogitRecorder, build, generate, request

PROMPT_LENGTHS = (300, 1, 64, 2, 17, 129, 8, 65, 7, 200, 16, 33, 9, 128, 63, 15)
NUM_NEW = 40
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-gqa": ("Llama", {}),
    "llama-mha-tied-llama3": (
        "Llama",
        {"hidden_size": 48, "num_attention_heads": 3, "num_key_value_heads": 3, "tie_word_embeddings": True,
         "rope_scaling": LLAMA3, "rope_theta": 500000.0, "vocab_size": 257},
    ),
    "llama-mqa-biases-linear": (
        "Llama",
        {"num_key_value_heads": 1, "head_dim": 24, "attention_bias": True, "mlp_bias": True, "vocab_size": 293,
         "rope_scaling": {"type": "linear", "factor": 2.0}},
    ),
    "mistral-window": (
        "Mistral", {"sliding_window": 37, "num_attention_heads": 6, "head_dim": 24, "num_hidden_layers": 3},
    ),
    "mistral-yarn-wide-heads": (
        "Mistral", {"head_dim": 80, "hidden_size": 40, "rope_scaling": YARN, "vocab_size": 401},
    ),
    "qwen2-tied": ("Qwen2", {"tie_word_embeddings": True, "head_dim": None, "vocab_size": 311}),
    "qwen2-window-from-layer-1": (
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": 21, "max_window_layers": 1, "num_hidden_layers": 3,
         "head_dim": None, "num_attention_heads": 2, "hidden_size": 96},
    ),
    "qwen2-yarn-gqa-7": (
        "Qwen2",
        {"num_attention_heads": 7, "num_key_value_heads": 1, "hidden_size": 56, "head_dim": None,
         "rope_scaling": {**YARN, "attention_factor": 1.3}},
    ),
    "qwen3": ("Qwen3", {"head_dim": 80, "hidden_size": 32, "vocab_size": 509}),
    "qwen3-bias-alternating-windows": (
        "Qwen3",
        {"attention_bias": True, "use_sliding_window": True, "sliding_window": 130, "num_hidden_layers": 3,
         "layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "tie_word_embeddings": True},
    ),
    "mixtral-window": ("Mixtral", {"num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": 37}),
    "qwen3-moe-dense-layer": (
        "Qwen3Moe",
        {"model_type": "qwen3_moe", "norm_topk_prob": True, "decoder_sparse_step": 2, "num_hidden_layers": 3},
    ),
}  # fmt: skip


@dataclass
class Tally:
    """Counts of compared tokens and ties of all cases."""

    num_tokens: int = 0
    num_ties: int = 0


@pytest.fixture(scope="module")
def tally() -> Tally:
    return Tally()


@pytest.mark.parametrize("name", CASES)
def test_greedy_outputs_equal_those_of_transformers(name: str, tally: Tally):
    architecture, fields = CASES[name]
    folder = tiny(architecture, **fields)
    engine = build(folder, dtype="float32", num_kv_blocks=40, max_num_batched_tokens=96, max_num_seqs=16)
    model, loading = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    assert not loading["missing_keys"] and not loading["unexpected_keys"] and not loading["mismatched_keys"]
    rng = random.Random(name)
    prompts = [[rng.randrange(engine.model_info.vocab_size) for _ in range(length)] for length in PROMPT_LENGTHS]
    requests = [request(engine, str(i), prompt, max_tokens=NUM_NEW) for i, prompt in enumerate(prompts)]
    outputs = generate(engine, requests, steps_between=2)
    assert engine.stats().preemption.num_preemptions > 0, "the pool was not small enough"
    for i, prompt in enumerate(prompts):
        assert len(outputs[str(i)]) == NUM_NEW
        compare(engine, model, prompt, outputs[str(i)], tally)


def compare(engine: Engine, model: PreTrainedModel, prompt: list[int], output: list[int], tally: Tally) -> None:
    """Compare an output with transformers' logits token by token; after a tie continue with transformers' token."""
    while output:
        with torch.inference_mode():
            logits_TV = model(torch.tensor([prompt + output])).logits[0, len(prompt) - 1 : -1]
        expected = logits_TV.argmax(-1).tolist()
        same = next((i for i, pair in enumerate(zip(output, expected, strict=True)) if pair[0] != pair[1]), None)
        tally.num_tokens += len(output) if same is None else same + 1
        if same is None:
            return
        logits_V = logits_TV[same]
        gap = float((logits_V[expected[same]] - logits_V[output[same]]) / (logits_V.max() - logits_V.min()))
        assert gap < 1e-5, f"token {same}: {output[same]} instead of {expected[same]}, {gap:.2e} of the range apart"
        tally.num_ties += 1
        num_left = len(output) - same - 1
        prompt = [*prompt, *output[:same], expected[same]]
        if num_left == 0:
            return
        output = generate(engine, [request(engine, "forced", prompt, max_tokens=num_left)])["forced"]


def test_ties_are_rarer_than_one_token_in_ten_thousand(tally: Tally):
    print(f"{tally.num_ties} ties in {tally.num_tokens} tokens")
    assert tally.num_ties * 10_000 <= tally.num_tokens


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_half_precision_is_as_exact_as_in_transformers(architecture: str, dtype: str):
    """Root mean square error of the logits of 30 prompt lengths; a factor of 1.5 allows for different rounding."""
    folder = tiny(architecture, num_hidden_layers=4, torch_dtype=dtype)
    ids = random.Random(1).choices(range(4, 300), k=30)
    engine = build(folder)
    recorder = LogitRecorder(engine)
    generate(engine, [request(engine, str(n), ids[:n], max_tokens=1) for n in range(1, 31)])
    ours = torch.stack([recorder.logits[tuple(ids[:n])][n - 1] for n in range(1, 31)])
    with torch.inference_mode():
        exact, theirs = (
            AutoModelForCausalLM.from_pretrained(folder, dtype=each)(torch.tensor([ids])).logits[0].float()
            for each in (torch.float32, getattr(torch, dtype))
        )
    assert float((ours - exact).square().mean()) <= 1.5**2 * float((theirs - exact).square().mean())


def test_cached_generation_of_transformers_gives_the_same_output():
    """Compare with `generate`, which decodes token by token with its own cache."""
    folder = tiny("Qwen3")
    engine = build(folder, dtype="float32")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    prompt = list(range(40, 90))
    ids = torch.tensor([prompt])
    expected = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=24, min_new_tokens=24, do_sample=False, pad_token_id=0
    )
    plain = request(engine, "a", prompt, max_tokens=24, ignore_eos=False, min_tokens=24)
    assert generate(engine, [plain])["a"] == expected[0, len(prompt) :].tolist()
