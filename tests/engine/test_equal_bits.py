"""The logits of a request have the same bits in any batch.

The reference is the request alone, its prompt in one step, on one thread. Nothing else may change them: other
sequences, the order of arrival, the chunks of prompts, preemption and swaps, shared and cached blocks, failed steps,
the block size, the number of threads.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from app.contract.engine_status import EngineStats
from app.contract.events import Finished, TokenDelta
from app.contract.requests import EngineRequest
from app.engine.engine import Engine
from tests.cases import long
from tests.checkpoints import tiny
from tests.engine.driving import LogitRecorder, Run, build, generate, request
from tests.engine.execute.injected_faults import InjectedFaults
from tests.quantized_models import QUANTIZED, quantized_model

DTYPES = ("float32", "bfloat16", "float16")
MODELS = {
    "llama": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "odd-heads": ("Llama", {"num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 24, "vocab_size": 293}),
    "window": ("Mistral", {"sliding_window": 19, "head_dim": 80, "hidden_size": 40}),
    "qwen3": ("Qwen3", {"num_key_value_heads": 4}),
    "experts": ("Qwen2Moe", {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 40}),
}
CASES = [*((model, dtype) for model in MODELS for dtype in DTYPES), *((name, "bfloat16") for name in QUANTIZED)]
TARGET = tuple(random.Random(1).choices(range(4, 290), k=150))
# The recorder distinguishes requests by their prompts, so no other prompt may begin like the target's.
OTHER_TOKENS = [token for token in range(4, 290) if token != TARGET[0]]
NUM_NEW = 12


class FixedThreads:
    """Replaces ThreadChoice: always the same number of threads."""

    def __init__(self, num_threads: int) -> None:
        self.num_threads = num_threads

    @contextmanager
    def measured(self, num_tokens: int) -> Iterator[None]:
        torch.set_num_threads(self.num_threads)
        yield
        torch.set_num_threads(1)


def engine_for(model: str, dtype: str, **given: object) -> Engine:
    if model in QUANTIZED:
        return build(**{**quantized_model(model), **given})
    architecture, fields = MODELS[model]
    return build(tiny(architecture, **fields), dtype=dtype, **given)


@cache
def alone(model: str, dtype: str, num_prompt: int) -> dict[int, Tensor]:
    """The logits by position without other requests, with the prompt in one chunk."""
    engine = engine_for(model, dtype)
    recorder = LogitRecorder(engine)
    generate(engine, [request(engine, "alone", TARGET[:num_prompt], max_tokens=NUM_NEW)])
    return recorder.logits[TARGET[:num_prompt]]


def check(recorder: LogitRecorder, expected: dict[int, Tensor], num_prompt: int) -> None:
    logits = recorder.logits[TARGET[:num_prompt]]
    assert logits.keys() == expected.keys()
    for position, logits_V in logits.items():
        assert torch.equal(logits_V, expected[position]), f"different bits at position {position}"


@pytest.mark.parametrize("num_examples", [30, long(100)])
def test_logits_do_not_depend_on_batch_or_history(num_examples: int):
    """Other requests, chunks, preemption, swaps, shared and cached blocks, pauses, steps that raise and are replayed.

    Preemptions and swaps are rare in the examples, and have their own tests. The other events must occur.
    """
    seen: Counter[str] = Counter()

    @settings(max_examples=num_examples)
    @given(data=st.data())
    def check_example(data: st.DataObject) -> None:
        stats = check_history(data)
        seen.update(hits=stats.starts.num_prefix_hits, copies=stats.blocks.num_copied, faults=stats.recovery.num_faults)

    check_example()
    assert all(seen[kind] > 0 for kind in ("hits", "copies", "faults")), seen


def check_history(data: st.DataObject) -> EngineStats:
    """Run the target request in a random batch; return the engine's statistics."""
    model, dtype = data.draw(st.sampled_from(CASES), label="model and dtype")
    num_prompt = data.draw(st.sampled_from((1, 2, 7, 31, 33, 127, 128, 129, 150)), label="prompt tokens")
    others = data.draw(st.lists(st.integers(1, 140), max_size=10), label="prompt tokens of the others")
    block_size = data.draw(st.sampled_from((8, 16, 32, 64, 128)), label="block size")
    scale = 4 if block_size == 128 else 1  # of all memory, or it would have too few blocks
    num_tokens = scale * data.draw(st.sampled_from((448, 640, 4096)), label="pool in tokens")
    # Two consecutive faults at the same token would fail a request that runs alone.
    faults = data.draw(st.sets(st.sampled_from((2, 17, 33, 50))), label="steps that raise")
    engine = engine_for(
        model,
        dtype,
        block_size=block_size,
        num_kv_blocks=num_tokens // block_size,
        max_num_batched_tokens=data.draw(st.sampled_from((16, 17, 24, 61, 96, 512)), label="token budget"),
        max_num_seqs=data.draw(st.sampled_from((4, 6, 16)), label="seats"),
        enable_prefix_caching=data.draw(st.booleans(), label="prefix cache"),
        swap_space=scale * data.draw(st.sampled_from((0, 2**18, 2**23)), label="host memory"),
    )
    recorder = LogitRecorder(engine)
    InjectedFaults(before_sample=faults).wrap(engine)
    rng = random.Random(num_prompt)
    requests = [other(engine, index, length, num_prompt, rng) for index, length in enumerate(others)]
    index = data.draw(st.integers(0, len(others)), label="index of the target")
    requests.insert(index, request(engine, "target", TARGET[:num_prompt], max_tokens=NUM_NEW))
    requests.append(request(engine, "target again", TARGET[:num_prompt], max_tokens=NUM_NEW))
    pauses = data.draw(st.lists(st.integers(1, 40), max_size=3), label="steps at which the target pauses")
    run, waits = Run(engine), data.draw(st.integers(0, 3), label="steps between arrivals")
    for each in requests:
        run.add(each)
        run.step(waits)
    for step in range(40):
        if step in pauses:
            engine.pause("target")
        run.step()
        engine.resume("target")
    run.finish()
    stats = engine.stats()
    assert all(isinstance(event, TokenDelta | Finished) for event in run.events)
    check(recorder, alone(model, dtype, num_prompt), num_prompt)
    return stats


# One model with every type, the others with bfloat16.
FEW = [(model, dtype) for model, dtype in CASES if model == "llama" or dtype == "bfloat16"]


@pytest.mark.parametrize(("model", "dtype"), [*FEW, *(long(*case) for case in CASES if case not in FEW)])
def test_logits_are_the_same_after_swaps_and_from_host_memory(model: str, dtype: str):
    engine = engine_for(model, dtype, num_kv_blocks=22, max_num_batched_tokens=40, max_num_seqs=8, swap_space=2**23)
    engine.scheduler.tables.swap.block_s = 0.0  # swapping is always cheaper than recomputing
    recorder = LogitRecorder(engine)
    others = [request(engine, f"{i}", TARGET[i : i + 60], max_tokens=50) for i in (50, 60, 70)]
    target = request(engine, "target", TARGET[:33], max_tokens=NUM_NEW + 40)
    last = [request(engine, f"last {i}", TARGET[i : i + 9], max_tokens=60) for i in (80, 90)]
    generate(engine, [*others, target, *last], steps_between=1)
    assert engine.stats().preemption.num_swaps > 1 and engine.stats().blocks.num_host > 0
    generate(engine, [request(engine, "flood", TARGET[20:], max_tokens=100)])
    generate(engine, [request(engine, "target again", TARGET[:33], max_tokens=NUM_NEW + 40)])
    expected = alone(model, dtype, 33)
    assert all(torch.equal(recorder.logits[TARGET[:33]][position], expected[position]) for position in expected)


def other(engine: Engine, index: int, length: int, num_prompt: int, rng: random.Random) -> EngineRequest:
    """Another request of the batch: some begin like the target, some have several choices."""
    prompt = rng.choices(OTHER_TOKENS, k=length)
    if index % 3 == 0:
        prompt = [*TARGET[: num_prompt - 1], *prompt][:150]
    choices = {"n": 3, "temperature": 1.0, "seed": index} if index % 4 == 1 else {}
    return request(engine, f"other {index}", prompt, max_tokens=rng.randrange(1, 30), **choices)


@pytest.mark.parametrize(("model", "dtype"), CASES)
def test_logits_are_the_same_after_preemption(model: str, dtype: str):
    """Recomputed positions have the bits that they had when decoded: LogitRecorder compares these too."""
    engine = engine_for(model, dtype, num_kv_blocks=22, max_num_batched_tokens=40, max_num_seqs=8)
    recorder = LogitRecorder(engine)
    first = [request(engine, f"first {i}", TARGET[i : i + 60], max_tokens=50) for i in (50, 60, 70)]
    target = request(engine, "target", TARGET[:33], max_tokens=NUM_NEW + 40)
    last = [request(engine, f"last {i}", TARGET[i : i + 9], max_tokens=60) for i in (80, 90)]
    generate(engine, [*first, target, *last], steps_between=1)
    assert engine.stats().preemption.num_preemptions > 1
    expected = alone(model, dtype, 33)
    logits = recorder.logits[TARGET[:33]]
    assert all(torch.equal(logits[position], expected[position]) for position in expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_logits_do_not_depend_on_the_number_of_threads(dtype: str):
    """With a model so large that its matrix products, sums and elementwise loops are split over threads."""
    fields = {
        "hidden_size": 576, "intermediate_size": 1536, "num_attention_heads": 9, "num_key_value_heads": 3,
        "head_dim": 64, "vocab_size": 4099, "num_hidden_layers": 1, "max_position_embeddings": 256,
    }  # fmt: skip
    folder = tiny("Llama", **fields)
    seen: list[dict[int, Tensor]] = []
    for num_threads, num_others in ((1, 0), (1, 5), (2, 0), (2, 5)):
        engine = build(folder, dtype=dtype)
        engine.runner._threads = FixedThreads(num_threads)
        recorder = LogitRecorder(engine)
        others = [request(engine, f"{i}", TARGET[i : 30 + 20 * i], max_tokens=4) for i in range(1, num_others + 1)]
        generate(engine, [*others, request(engine, "target", TARGET[:130], max_tokens=4)])
        seen.append(recorder.logits[TARGET[:130]])
    for logits in seen[1:]:
        assert all(torch.equal(logits[position], seen[0][position]) for position in seen[0])


def test_a_sampled_output_does_not_depend_on_the_batch():
    engine = engine_for("llama", "bfloat16", num_kv_blocks=24, max_num_batched_tokens=32, max_num_seqs=16)
    params = {"temperature": 0.9, "top_p": 0.95, "top_k": 40, "seed": 7, "max_tokens": 40, "repetition_penalty": 1.2}
    expected = generate(engine, [request(engine, "alone", TARGET[:20], **params)])["alone"]
    others = [request(engine, f"{i}", TARGET[i : 50 + i], temperature=1.0, seed=i, max_tokens=45) for i in range(6)]
    outputs = generate(engine, [*others, request(engine, "target", TARGET[:20], **params)], steps_between=1)
    assert engine.stats().preemption.num_preemptions > 0
    assert outputs["target"] == expected
    assert len(set(expected)) > 10, "the output must not be a loop"


def test_different_seeds_give_different_outputs():
    engine = engine_for("llama", "float32")
    outputs = generate(
        engine, [request(engine, f"{seed}", TARGET[:9], temperature=1.0, seed=seed) for seed in range(8)]
    )
    assert len({tuple(tokens) for tokens in outputs.values()}) == 8
