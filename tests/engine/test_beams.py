"""Beam search in the real engine: the outputs of transformers, in any batch and in a small pool."""

from __future__ import annotations

import random

import pytest
import torch
from transformers import AutoModelForCausalLM

from app.contract.events import Finished, FinishReason, TokenDelta
from tests.cases import long
from tests.checkpoints import tiny
from tests.engine.driving import Run, build, request
from tests.engine.execute.injected_faults import InjectedFaults

NUM_NEW = 14
EOS = (1, *range(50, 74))  # many, so that a random model generates them
CASES = [
    {"beam_width": 2, "n": 2},
    {"beam_width": 4, "n": 4, "length_penalty": 0.0},
    {"beam_width": 4, "n": 2, "length_penalty": 2.0, "early_stopping": True},
    {"beam_width": 6, "n": 6, "length_penalty": -1.0, "early_stopping": "never"},
    {"beam_width": 3, "n": 1, "min_tokens": 5},
]


def prompts() -> list[list[int]]:
    rng = random.Random(3)
    return [rng.choices(range(4, 290), k=length) for length in (1, 9, 16, 33, 70)]


def transformers_outputs(case: dict[str, object], prompt: list[int]) -> list[list[int]]:
    """The token ids of the best outputs of transformers, up to EOS."""
    model = AutoModelForCausalLM.from_pretrained(tiny("Llama"), dtype=torch.float32).eval()
    with torch.inference_mode():
        rows = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            do_sample=False,
            num_beams=case["beam_width"],
            num_return_sequences=case["n"],
            length_penalty=case.get("length_penalty", 1.0),
            early_stopping=case.get("early_stopping", False),
            max_new_tokens=NUM_NEW,
            min_new_tokens=case.get("min_tokens", 0) or None,
            eos_token_id=list(EOS),
            pad_token_id=EOS[0],
        )
    outputs = []
    for row in rows.tolist():
        output = row[len(prompt) :]
        ends = [index for index, token_id in enumerate(output) if token_id in EOS]
        outputs.append(output[: ends[0]] if ends else output)
    return outputs


def engine_outputs(run: Run, request_id: str, n: int) -> list[list[int]]:
    outputs: list[list[int]] = [[] for _ in range(n)]
    for event in run.of(request_id):
        if isinstance(event, TokenDelta):
            outputs[event.choice] += event.token_ids
    return outputs


@pytest.mark.parametrize(
    "settings",
    [
        long({}),
        {"num_kv_blocks": 40, "swap_space": 2**21},
        long({"num_kv_blocks": 40, "max_num_batched_tokens": 32, "max_num_seqs": 32}),
    ],
    ids=["many blocks", "swapping", "few blocks"],
)
def test_beams_are_those_of_transformers(settings: dict[str, object], caplog: pytest.LogCaptureFixture):
    """All cases at once, with other requests in between, a failing step, and preemption if the pool is small."""
    engine = build(
        tiny("Llama"), dtype="float32", faults=InjectedFaults(before_sample={9}), **{"num_kv_blocks": 500, **settings}
    )
    run = Run(engine)
    params = {"temperature": None, "ignore_eos": False, "max_tokens": NUM_NEW, "use_beam_search": True}
    for index, prompt in enumerate(prompts()):
        for number, case in enumerate(CASES):
            run.add(request(engine, f"{index}.{number}", prompt, **params, stop_token_ids=list(EOS), **case))
            run.step()
        run.add(request(engine, f"other {index}", prompt, n=2, temperature=1.0, seed=index, max_tokens=30))
    run.finish()
    if settings:
        assert engine.stats().preemption.num_preemptions > 0
    ended_early = 0
    for index, prompt in enumerate(prompts()):
        for number, case in enumerate(CASES):
            assert engine_outputs(run, f"{index}.{number}", case["n"]) == transformers_outputs(case, prompt)
            ends = [event for event in run.of(f"{index}.{number}") if isinstance(event, Finished)]
            assert [end.choice for end in ends] == list(range(case["n"]))
            ended_early += sum(end.reason is FinishReason.STOP for end in ends)
    assert ended_early > 10, "some outputs must end by EOS"
    assert engine.stats().blocks.num_free == engine.stats().blocks.num_blocks
