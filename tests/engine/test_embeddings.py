"""Pooled prompts: the vectors of the reference, with the same bits in any batch and for any chunks."""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from app.contract.events import Embedded, Finished, FinishReason, RequestFailed
from app.contract.requests import EngineRequest, Pooling, PoolingKind
from app.engine.engine import Engine
from tests.checkpoints import tiny
from tests.engine.driving import Run, build, request
from tests.engine.execute.injected_faults import InjectedFaults

PROMPT = tuple(random.Random(5).choices(range(4, 290), k=90))
KINDS = list(PoolingKind)


def pooled(
    engine: Engine, request_id: str, prompt: tuple[int, ...], kind: PoolingKind, **options: object
) -> EngineRequest:
    pooling = Pooling(kind, **({"is_normalized": False} | options))
    return replace(request(engine, request_id, prompt, max_tokens=1), pooling=pooling)


def vectors(run: Run) -> dict[str, np.ndarray]:
    return {e.request_id: np.frombuffer(e.vector, np.float32) for e in run.events if isinstance(e, Embedded)}


def alone(pooling: PoolingKind, **settings: object) -> np.ndarray:
    run = Run(engine := build(tiny("Llama"), **settings))
    run.add(pooled(engine, "alone", PROMPT, pooling))
    run.finish()
    assert len(run.events) == 1
    return vectors(run)["alone"]


@pytest.mark.parametrize("pooling", KINDS)
@pytest.mark.parametrize("enforce_eager", [False, True])
def test_vectors_are_those_of_transformers(pooling, enforce_eager):
    folder = tiny("Llama")
    vector = alone(pooling, dtype="float32", enforce_eager=enforce_eager)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        states = model.model(torch.tensor([PROMPT])).last_hidden_state[0]
    expected = states.mean(0) if pooling is PoolingKind.MEAN else states[-1]
    np.testing.assert_allclose(vector, expected.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("pooling", KINDS)
def test_bits_do_not_depend_on_batch_and_chunks(pooling, dtype):
    expected = alone(pooling, dtype=dtype).tobytes()
    for seed, max_tokens in enumerate((9, 16, 33, 512)):
        rng = random.Random(seed)
        run = Run(engine := build(tiny("Llama"), dtype=dtype, max_num_batched_tokens=max_tokens, max_num_seqs=6))
        for index in range(4):
            other = tuple(rng.choices(range(4, 290), k=rng.randrange(1, 60)))
            run.add(request(engine, f"text-{index}", other, max_tokens=rng.randrange(1, 20)))
            run.add(pooled(engine, f"other-{index}", other, rng.choice(KINDS)))
            run.step(rng.randrange(3))
        run.add(pooled(engine, "target", PROMPT, pooling))
        run.finish()
        assert vectors(run)["target"].tobytes() == expected
        assert len(vectors(run)) == 5


@pytest.mark.parametrize("pooling", KINDS)
def test_a_prompt_in_the_prefix_cache_is_computed_again_and_has_the_same_bits(pooling):
    run = Run(engine := build(tiny("Llama")))
    run.add(request(engine, "text", PROMPT, max_tokens=2))
    run.finish()
    run.add(pooled(engine, "one", PROMPT, pooling))
    run.finish()
    hits = engine.stats().starts.num_prefix_hits
    run.add(request(engine, "again", PROMPT, max_tokens=2))
    run.finish()
    assert vectors(run)["one"].tobytes() == alone(pooling).tobytes()
    assert (hits, engine.stats().starts.num_prefix_hits > 0) == (0, True)


@pytest.mark.parametrize("swap_space", [0, 2**22])
@pytest.mark.parametrize("pooling", KINDS)
def test_a_preempted_or_paused_prompt_has_the_same_bits(pooling, swap_space):
    expected = alone(pooling).tobytes()
    for when in range(1, 12, 3):
        engine = build(tiny("Llama"), max_num_batched_tokens=8, max_num_seqs=8, swap_space=swap_space)
        run = Run(engine)
        run.add(pooled(engine, "target", PROMPT, pooling))
        run.step(when)
        engine.pause("target")
        run.step()
        run.add(request(engine, "text", PROMPT[:20], max_tokens=3))
        run.step(2)
        engine.resume("target")
        run.step()
        engine.scheduler.preemption.preempt(engine.scheduler.preemption.last_running)
        run.finish()
        assert vectors(run)["target"].tobytes() == expected


@pytest.mark.parametrize("pooling", KINDS)
def test_a_step_that_raises_is_replayed_with_the_same_bits(pooling):
    expected = alone(pooling).tobytes()
    for step in range(1, 12, 2):
        engine = build(
            tiny("Llama"), max_num_batched_tokens=8, max_num_seqs=8, faults=InjectedFaults(before_sample={step})
        )
        run = Run(engine)
        run.add(pooled(engine, "target", PROMPT, pooling))
        run.finish()
        assert vectors(run)["target"].tobytes() == expected


def test_an_aborted_prompt_ends_as_cancelled_and_frees_its_blocks():
    engine = build(tiny("Llama"), max_num_batched_tokens=8, max_num_seqs=8)
    run = Run(engine)
    run.add(pooled(engine, "target", PROMPT, PoolingKind.MEAN))
    run.step(3)
    events = engine.abort("target", 0.0)
    assert [event.reason for event in events if isinstance(event, Finished)] == [FinishReason.CANCELLED]
    run.finish()
    assert not [event for event in run.events if isinstance(event, (Embedded, RequestFailed))]
    assert not engine.scheduler.queues.running


@pytest.mark.parametrize("kind", KINDS)
def test_a_vector_is_cut_and_then_scaled_to_length_1(kind):
    whole = alone(kind)
    engine = build(tiny("Llama"))
    for num_dimensions in (1, 7, len(whole), None):
        run = Run(engine)
        run.add(pooled(engine, "cut", PROMPT, kind, num_dimensions=num_dimensions, is_normalized=True))
        run.finish()
        expected = whole[:num_dimensions] / np.linalg.norm(whole[:num_dimensions])
        np.testing.assert_allclose(vectors(run)["cut"], expected, rtol=1e-5, atol=1e-7)
