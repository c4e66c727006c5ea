"""The complete GPU path on the fake device: outputs equal those of the CPU, with run-ahead, faults and swaps."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from app.contract.errors import CannotStart, EngineFailed
from app.contract.events import Finished, RequestFailed, TokenDelta
from app.engine.engine import Engine
from app.engine.execute.gpu.device import Work
from app.engine.kv_disk.block_folder import BlockFolder
from app.engine.kv_disk.disk_store import KVDisk
from tests.checkpoints import damaged_copy, tiny
from tests.engine import driving
from tests.engine.driving import request
from tests.engine.execute.gpu.fake_device import FakeDevice
from tests.engine.execute.gpu.gpu_engine import build, run
from tests.engine.execute.injected_faults import InjectedFaults

MODEL = tiny("Llama", num_hidden_layers=1)
RNG = random.Random(0)
LONG, SHORT = ([RNG.randrange(4, 290) for _ in range(length)] for length in (24, 7))
KINDS = {
    "greedy": (LONG, {}),
    "sampled": (SHORT, {"temperature": 1.0, "seed": 3}),
    "filtered": ([9] * 7, {"temperature": 0.8, "top_k": 40, "top_p": 0.8, "min_p": 0.01, "seed": 4}),
    "penalized": (SHORT[::-1], {"repetition_penalty": 1.3, "presence_penalty": 0.5, "logprobs": 2}),
    "adjusted": (
        [7],
        {"logit_bias": {11: 4.0, 12: -9.0}, "min_tokens": 5, "ignore_eos": False, "temperature": 1.2, "seed": 6},
    ),
    "two": (SHORT[:2], {"n": 2, "temperature": 1.0, "seed": 5}),
}

NUM_NEW = 5
NAN_TOKEN = 300

Outputs = dict[tuple[str, int], tuple[list[int], list[object]]]


def outputs_of(events: Sequence[object]) -> Outputs:
    """Tokens and log-probabilities of each choice of each request."""
    found: Outputs = {}
    for event in events:
        if isinstance(event, TokenDelta):
            tokens, logprobs = found.setdefault((event.request_id, event.choice), ([], []))
            tokens += event.token_ids
            logprobs += [round(entry.logprob, 4) for entry in event.logprobs or ()]
    return found


def run_requests(engine: Engine, names: Sequence[str], max_tokens: int, apart: int = 1) -> Outputs:
    """Add requests, `apart` steps after each other, and run them to their ends."""
    events: list[object] = []
    for name in names:
        prompt, params = KINDS[name]
        events += engine.add(request(engine, name, prompt, **{"max_tokens": max_tokens, **params}))
        for _ in range(apart):
            events += engine.step(0.0)
    events += run(engine)
    assert {event.request_id for event in events if isinstance(event, Finished)} == set(names)
    return outputs_of(events)


def damaged_by_nan(tmp_path: Path) -> Path:
    """The model with one token that makes everything behind it NaN."""
    folder = damaged_copy(MODEL, tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    tensors["model.embed_tokens.weight"][NAN_TOKEN] = torch.nan
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.fixture(scope="module")
def expected() -> Outputs:
    """The outputs of the CPU."""
    return run_requests(driving.build(MODEL), list(KINDS), NUM_NEW)


@pytest.mark.parametrize("run_ahead", [0, pytest.param(3, marks=pytest.mark.long)])
def test_outputs_equal_those_of_the_cpu(run_ahead, expected):
    """With arrivals, ends, chunks of prompts, graphs, a pool that is too small, and all kinds of sampling."""
    device = FakeDevice()
    fused_rows = 8 if run_ahead else 0
    engine = build(MODEL, device, run_ahead=run_ahead, num_kv_blocks=4, fused_rows=fused_rows, warms_up=True)
    assert run_requests(engine, list(KINDS), NUM_NEW) == expected
    assert sum(graph.num_replays for graph in device.graphs) > 10
    assert engine.stats().recovery.num_faults == 0 and (engine.stats().preemption.num_preemptions > 0 or run_ahead)


def test_the_next_step_is_launched_before_the_last_tokens_are_read():
    device = FakeDevice()
    engine = build(MODEL, device, run_ahead=2, max_num_seqs=1)
    engine.add(request(engine, "greedy", LONG, max_tokens=30))
    for _ in range(4):
        engine.step(0.0)
    assert len(engine.in_flight) == 2
    waits, steps = device.num_waits, engine.num_steps
    engine.step(0.0)
    assert engine.num_steps == steps + 1 and len(engine.in_flight) == 2 and device.num_waits > waits
    engine.abort("greedy", 0.0)
    run(engine)
    assert not engine.in_flight and engine.stats().blocks.num_free == engine.stats().blocks.num_blocks


def test_idle_captures_change_no_output(expected):
    """Captures between requests do not change rows and cache."""
    device = FakeDevice()
    engine = build(MODEL, device)
    first = run_requests(engine, ["greedy"], NUM_NEW)
    assert engine.work_idly()
    while engine.work_idly():
        pass
    assert len(device.graphs) == 5  # decode steps of 1, 2 and 4 rows, and mixed steps with few and many pieces
    again = run_requests(engine, ["sampled", "penalized"], NUM_NEW)
    assert {**first, **again}.items() <= expected.items()


def test_beams_and_drafts_give_the_same_outputs_as_on_the_cpu():
    prompt = [5, 6, 7, 8] * 4
    requests = {
        "beams": {"use_beam_search": True, "beam_width": 2, "n": 2, "max_tokens": 4},
        "draft": {"max_tokens": 8, "repetition_penalty": 1.1},
    }
    every = []
    for engine in (driving.build(MODEL, speculative_ngram=3), build(MODEL, speculative_ngram=3)):
        events: list[object] = []
        for name, params in requests.items():
            events += engine.add(request(engine, name, prompt, **params))
        events += run(engine)
        every.append(outputs_of(events))
    assert every[0] == every[1]


def test_a_beam_beside_steps_ahead_waits_for_its_samples():
    events: list[object] = []
    engine = build(MODEL, run_ahead=3)
    events += engine.add(request(engine, "greedy", LONG, max_tokens=6))
    for _ in range(3):
        events += engine.step(0.0)
    beams = {"use_beam_search": True, "beam_width": 2, "n": 1, "max_tokens": 3}
    events += engine.add(request(engine, "beams", SHORT, **beams))
    found = outputs_of([*events, *run(engine)])
    alone = driving.build(MODEL)
    alone.add(request(alone, "beams", SHORT, **beams))
    assert found["beams", 0] == outputs_of(run(alone))["beams", 0] and len(found["greedy", 0][0]) == 6


@pytest.mark.parametrize("hook", ["before_launch", pytest.param("before_result", marks=pytest.mark.long)])
def test_a_step_that_fails_is_replayed_with_the_same_tokens(hook, expected):
    faults = InjectedFaults(**{hook: {3, 9}})
    engine = build(MODEL, run_ahead=2, faults=faults)
    names = ["greedy", "sampled", "penalized"]
    found = run_requests(engine, names, NUM_NEW)
    assert engine.stats().recovery.num_faults == 2
    assert found == {key: value for key, value in expected.items() if key[0] in names}


ADVICE = "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions."


def test_a_broken_device_ends_the_engine_at_once_and_no_request_is_blamed():
    device = FakeDevice()
    engine = build(MODEL, device, run_ahead=2, max_num_seqs=2)
    for name in ("greedy", "sampled"):
        engine.add(request(engine, name, KINDS[name][0], max_tokens=20))
    for _ in range(3):
        engine.step(0.0)
    device.error = torch.AcceleratorError(f"CUDA error: an illegal memory access was encountered\n{ADVICE}")
    with pytest.raises(
        EngineFailed, match=r"The GPU has failed.*illegal memory access was encountered\)\. Start"
    ) as end:
        engine.step(0.0)
    assert ADVICE not in str(end.value)
    assert engine.stats().recovery.num_faults == 0 and engine.stats().recovery.num_culprits == 0


def test_a_device_that_breaks_in_an_idle_capture_ends_the_engine():
    device = FakeDevice()
    engine = build(MODEL, device, max_num_seqs=1)
    device.capture_errors = [RuntimeError("Triton Error [CUDA]: unspecified launch failure")]
    with pytest.raises(EngineFailed, match="The GPU has failed"):
        engine.work_idly()


def test_a_device_without_memory_is_not_broken(expected):
    class Short(FakeDevice):
        """Has too little memory for one step."""

        def run(self, work: Work) -> None:
            if self.error is not None:
                error, self.error = self.error, None
                raise error
            super().run(work)

    device = Short()
    engine = build(MODEL, device, run_ahead=2, max_num_seqs=1)
    engine.add(request(engine, "greedy", LONG, max_tokens=NUM_NEW))
    device.error = torch.OutOfMemoryError(f"CUDA error: out of memory\n{ADVICE}")
    assert outputs_of(run(engine)) == {key: value for key, value in expected.items() if key[0] == "greedy"}
    assert engine.stats().recovery.num_faults == 1


@pytest.mark.filterwarnings("ignore:All-NaN:RuntimeWarning", "ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("run_ahead", [pytest.param(0, marks=pytest.mark.long), 2])
def test_a_request_whose_logits_are_no_numbers_fails_alone(run_ahead, expected, tmp_path, caplog):
    device = FakeDevice()
    engine = build(damaged_by_nan(tmp_path), device, run_ahead=run_ahead)
    requests = {"bad": {"logprobs": 2}, "wild": {"temperature": 1.0, "top_k": 5, "seed": 3}}
    events: list[object] = []
    for name in ("greedy", "sampled"):
        prompt, params = KINDS[name]
        events += engine.add(request(engine, name, prompt, **{"max_tokens": NUM_NEW, **params}))
        events += engine.step(0.0)
    for name, params in requests.items():
        events += engine.add(request(engine, name, [7, NAN_TOKEN, 8], max_tokens=NUM_NEW, **params))
        events += engine.step(0.0)
    events += run(engine)
    assert outputs_of(events) == {key: value for key, value in expected.items() if key[0] in ("greedy", "sampled")}
    failures = [event for event in events if isinstance(event, RequestFailed)]
    assert {event.request_id for event in failures} == set(requests) and len(failures) == 2
    assert all("its logits are no numbers (NaN)" in event.error.message for event in failures)
    stats = engine.stats()
    assert stats.num_nan_requests == 2 and stats.recovery.num_faults == 0
    assert stats.blocks.num_free == stats.blocks.num_blocks
    assert [record.message.split(":")[0] for record in caplog.records if "(NaN)" in record.message] == [
        "the engine failed on request bad",
        "the engine failed on request wild",
    ]


def test_outputs_are_the_same_after_swaps(expected):
    device = FakeDevice()
    engine = build(MODEL, device, run_ahead=1, num_kv_blocks=5, swap_space="4MiB")
    names = ["greedy", "sampled", "filtered", "penalized"]
    assert run_requests(engine, names, NUM_NEW) == {key: value for key, value in expected.items() if key[0] in names}
    assert engine.stats().preemption.num_swaps > 0 and device.num_pinned_bytes > 0


@pytest.mark.parametrize("run_ahead", [pytest.param(0, marks=pytest.mark.long), 2])
def test_outputs_are_the_same_with_blocks_from_disk(run_ahead, tmp_path):
    outputs, num_cached = [], []
    for _ in range(2):
        disk = KVDisk(BlockFolder(tmp_path / "kv", 2**20), lambda: 0.0)
        engine = build(MODEL, run_ahead=run_ahead, kv_disk=disk)
        engine.add(request(engine, "beside", SHORT, max_tokens=NUM_NEW))
        asked = request(engine, "asked", LONG, max_tokens=NUM_NEW, logprobs=1)
        limit_s = disk.limit_s(asked)
        events = engine.add(replace(asked, stored=disk.fetch(asked, limit_s) if limit_s else None)) + run(engine)
        disk.close(60.0, has_ended=True)
        outputs.append(outputs_of(events))
        num_cached += [event.usage.cached_tokens for event in events if isinstance(event, Finished)][-1:]
    assert outputs[0] == outputs[1]
    assert num_cached == [0, 16] and disk.counts.num_read == 2


@pytest.mark.long
def test_deterministic_logits_have_the_same_bits_in_any_batch():
    """Unrounded log-probabilities of the sampled tokens: alone in large chunks, in a batch in small ones."""
    every = []
    for others, settings in (([], {"max_num_batched_tokens": 16}), (["sampled", "filtered"], {})):
        engine = build(MODEL, deterministic=True, **settings)
        events: list[object] = []
        for name in others:
            prompt, params = KINDS[name]
            events += engine.add(request(engine, name, prompt, **{"max_tokens": 4, **params}))
            events += engine.step(0.0)
        events += engine.add(request(engine, "one", LONG, max_tokens=4, logprobs=1))
        events += run(engine)
        mine = [event for event in events if isinstance(event, TokenDelta) and event.request_id == "one"]
        every.append([entry.logprob for event in mine for entry in event.logprobs])
    assert len(every[0]) == 4 and every[0] == every[1]


def test_too_little_memory_is_reported_before_loading():
    with pytest.raises(CannotStart, match="The weights take"):
        build(MODEL, FakeDevice(total=1000))
