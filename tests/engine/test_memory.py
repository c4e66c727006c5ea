"""KV blocks in the real engine: prefix cache, host memory, pinned prefixes, and the smallest possible pool."""

from __future__ import annotations

import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from app.checkpoint.text_files import FolderText
from app.config.settings import make_config
from app.contract.admission import admit
from app.contract.errors import CannotStart, ConfigurationError, KVCapacityExceeded
from app.contract.events import Finished, RequestFailed
from app.contract.sampling_params import SamplingParams
from app.engine.engine import Engine
from app.text.entry.frontend import TextFrontend
from tests.cases import long
from tests.checkpoints import real_size, tiny
from tests.engine.driving import Run, build, generate, request

SIZE = 16
MIB = 1 << 20


def engine(**settings: object) -> Engine:
    return build(tiny("Llama"), **{"itl_target": 0.0, **settings})


def prompt_of(length: int, seed: int = 0) -> tuple[int, ...]:
    return tuple(random.Random(seed).choices(range(4, 290), k=length))


def cached_tokens(run: Run, request_id: str) -> int:
    end = run.end(request_id)
    assert isinstance(end, Finished)
    return end.usage.cached_tokens


@pytest.mark.parametrize("num_prompt, num_output", [(40, 9), (33, 15), (16, 17), (15, 2), (64, 64)])
def test_the_second_turn_finds_all_full_blocks_of_the_first(num_prompt: int, num_output: int):
    """Prompt and output, except for the output's last token, which was sampled but never computed."""
    built, run = engine(), None
    first = prompt_of(num_prompt)
    output = generate(built, [request(built, "first", first, max_tokens=num_output)])["first"]
    second = (*first, *output, *prompt_of(20, seed=1))
    run = Run(built)
    run.add(request(built, "second", second))
    run.finish()
    assert cached_tokens(run, "second") == (num_prompt + num_output - 1) // SIZE * SIZE
    cold = engine()
    assert run.tokens("second") == generate(cold, [request(cold, "second", second)])["second"]


def test_the_same_prompt_again_computes_its_last_token_only():
    built = engine()
    prompt = prompt_of(4 * SIZE)
    runs = []
    for name in ("first", "again"):
        run = Run(built)
        run.add(request(built, name, prompt))
        run.finish()
        runs.append(run.tokens(name))
    assert runs[0] == runs[1] and cached_tokens(run, "again") == 3 * SIZE


def test_no_block_is_found_without_prefix_caching():
    built = engine(enable_prefix_caching=False)
    for name in ("first", "again"):
        run = Run(built)
        run.add(request(built, name, prompt_of(70)))
        run.finish()
    assert cached_tokens(run, "again") == 0 and built.stats().blocks.num_cached == 0


def test_evicted_blocks_are_found_in_host_memory():
    """The blocks of an idle chat were evicted by other requests; its prefix comes back from host memory."""
    built = engine(num_kv_blocks=12, swap_space=2**21, max_model_len=160)
    first = prompt_of(100)
    output = generate(built, [request(built, "first", first)])["first"]
    for seed in range(1, 5):
        generate(built, [request(built, f"other {seed}", prompt_of(140, seed))])
    assert built.stats().blocks.num_host > 0
    second = (*first, *output, 5, 6, 7)
    run = Run(built)
    run.add(request(built, "second", second))
    run.finish()
    assert cached_tokens(run, "second") == (100 + 15) // SIZE * SIZE
    cold = engine()
    assert run.tokens("second") == generate(cold, [request(cold, "second", second)])["second"]


@pytest.mark.parametrize("settings", [{}, {"swap_space": 2**21}, long({"enable_prefix_caching": False})])
def test_a_pool_of_one_longest_request_serves_64_of_them(settings: dict[str, object]):
    longest = 80
    small = engine(num_kv_blocks=longest // SIZE, max_model_len=longest, max_num_seqs=16, **settings)
    requests = []
    for number in range(64):
        num_prompt = 1 + 7 * number % 76
        params = {"max_tokens": longest - num_prompt, "temperature": number % 2 * 0.8, "seed": number}
        requests.append(request(small, str(number), prompt_of(num_prompt, number), **params))
    outputs = generate(small, requests)
    assert small.stats().preemption.num_preemptions > 0
    large = engine(num_kv_blocks=2000, max_model_len=longest)
    assert outputs == generate(large, requests)


def test_a_request_larger_than_the_pool_is_rejected_by_name():
    small = engine(num_kv_blocks=8, max_model_len=512)
    with pytest.raises(KVCapacityExceeded):
        admit(prompt_of(100), SamplingParams(max_tokens=100), small.model_info)
    (event,) = small.add(request(engine(num_kv_blocks=64), "x", prompt_of(100), max_tokens=100))
    assert isinstance(event, RequestFailed) and event.error.code == "kv_capacity_exceeded"


def test_pinned_prefixes_are_never_evicted_and_are_found(tmp_path: Path):
    file = tmp_path / "system.txt"
    file.write_text("You are a server of very few words. " * 3)
    built = engine(num_kv_blocks=64, pin_prefix=(str(file),), max_model_len=256)
    num_pinned = built.stats().blocks.num_blocks - built.stats().blocks.num_free
    assert num_pinned > 0
    assert built.model_info.kv_capacity_tokens == (64 - num_pinned) * SIZE
    for seed in range(8):
        run = Run(built)
        run.add(request(built, f"other {seed}", prompt_of(200, seed), max_tokens=50))
        run.finish()
    assert built.stats().blocks.num_free == 64 - num_pinned
    built.scheduler.check_integrity()
    chat = chat_with(file.read_text().strip())
    for salt, num_cached in ((None, num_pinned * SIZE), ("mine", 0)):
        run = Run(built)
        run.add(replace(request(built, f"chat {salt}", chat), cache_salt=salt))
        run.finish()
        assert cached_tokens(run, f"chat {salt}") == num_cached


def chat_with(system: str) -> list[int]:
    """The prompt of a chat with this system prompt."""
    config = make_config({"model": str(tiny("Llama"))})
    template = TextFrontend.load(config.model, FolderText(tiny("Llama"))).chat_template
    assert template is not None
    return template.render([{"role": "system", "content": system}, {"role": "user", "content": "Hello there!"}])


@pytest.mark.parametrize(
    "content, settings, message",
    [
        (None, {}, "Cannot read the prefix file .*: No such file or directory"),
        (" \n", {}, "is empty"),
        ("too long " * 30, {"num_kv_blocks": 16}, "at most 50% may be pinned"),
        ("longer than the context " * 200, {"num_kv_blocks": 600}, "maximum context length is 512 tokens"),
        ("fine", {"enable_prefix_caching": False}, "needs prefix caching"),
    ],
)
def test_a_prefix_that_cannot_be_pinned_is_rejected(tmp_path: Path, content, settings, message):
    file = tmp_path / "system.txt"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigurationError, match=message) as caught:
        engine(pin_prefix=(str(file),), **settings)
    assert caught.value.param == "pin_prefix"


def test_more_swap_space_than_memory_is_rejected():
    with pytest.raises(CannotStart, match="--swap-space"):
        engine(swap_space=2**50)


# Prints the growth of this process's memory: with the engine, and after a first output.
GROWTH = """
import sys
from app import LLM, SamplingParams
from app.kernels.cpu.library import load_library

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

load_library()
how = {"load_format": "dummy", "max_model_len": 65536, "max_num_batched_tokens": 64}
LLM(sys.argv[1], num_kv_blocks=16, **how).generate([[5, 6, 7]], SamplingParams(max_tokens=2), use_tqdm=False)
before = resident()
llm = LLM(sys.argv[1], kv_cache_memory="512MiB", max_num_seqs=64, **how)
ready = resident() - before
llm.generate([[5, 6, 7]], SamplingParams(max_tokens=2, ignore_eos=True), use_tqdm=False)
num_blocks = llm.engine.stats().blocks.num_blocks
print(num_blocks * llm.engine.runner._cache.layout.bytes_per_block, ready, resident() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_blocks_take_memory_when_they_are_used_not_at_startup():
    command = [sys.executable, "-c", GROWTH, str(real_size("long"))]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    cache_bytes, ready, used = map(int, done.stdout.split())
    assert cache_bytes > 500 * MIB
    assert ready < 100 * MIB
    assert used - ready < 64 * MIB, "a huge page for the keys and values of each layer"
