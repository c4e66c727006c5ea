"""The prefix cache on disk: another engine finds what one has computed, bit by bit, and nobody else does."""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from app.config.settings import ServerConfig
from app.contract.requests import EngineRequest
from app.contract.stored_prefix import StoredPrefix
from app.engine.kv_disk import block_writer, disk_store
from app.engine.kv_disk.block_folder import BlockFolder
from app.engine.kv_disk.disk_store import KVDisk
from tests.checkpoints import tiny
from tests.engine.driving import Run, build, request
from tests.engine.kv_disk.stored_texts import StoredEngine
from tests.quantized_models import quantized_model

PROMPT = tuple(random.Random(7).choices(range(4, 290), k=100))
NUM_STORED = 96  # tokens of its full blocks
LAYOUTS: dict[str, dict[str, object]] = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "float16": {"dtype": "float16"},
    "int8": {"dtype": "bfloat16", "kv_cache_dtype": "int8"},
    "torch": {"dtype": "bfloat16", "enforce_eager": True},
    "small blocks": {"block_size": 8, "num_kv_blocks": 128},
    "large blocks": {"block_size": 32, "num_kv_blocks": 32},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "kv"


def stored(folder: Path, *prompts: tuple[int, ...], **settings: object) -> list[list[int]]:
    """The answers of an engine that stored what it computed, and has ended."""
    engine = StoredEngine(folder, **settings)
    answers = [engine.ask(prompt)[0] for prompt in prompts or [PROMPT]]
    engine.end()
    return answers


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.kv"))


def same_bits(some: dict[int, Tensor], others: dict[int, Tensor]) -> bool:
    """Whether the logits of the positions that both have are equal, those of the whole answer among them."""
    common = some.keys() & others.keys()
    return len(common) >= 20 and all(torch.equal(some[position], others[position]) for position in common)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_next_process_has_the_same_bits(layout: str, folder: Path):
    settings = {"model": tiny("Llama", num_attention_heads=3, num_key_value_heads=1, head_dim=24), **LAYOUTS[layout]}
    cold = StoredEngine(folder, **settings)
    tokens, num_found = cold.ask(PROMPT)
    cold.end()
    assert num_found == 0
    warm = StoredEngine(folder, **settings)
    assert warm.ask(PROMPT) == (tokens, NUM_STORED)
    assert same_bits(cold.recorder.logits[PROMPT], warm.recorder.logits[PROMPT])
    counts = warm.disk.current_counts()
    assert counts.num_read == NUM_STORED // warm.engine.model_info.block_size
    assert counts.num_bytes == sum(file.stat().st_size for file in files(folder)) > 0
    warm.end()


@pytest.mark.parametrize("kind", ["every type", "int8"])
def test_quantized_models_have_the_same_bits(kind: str, folder: Path):
    (tokens,) = stored(folder, **quantized_model(kind))
    assert StoredEngine(folder, **quantized_model(kind)).ask(PROMPT) == (tokens, NUM_STORED)


def test_the_next_turn_finds_prompt_and_answer(folder: Path):
    (tokens,) = stored(folder)
    turn = (*PROMPT, *tokens, *PROMPT[:30])
    other = build(tiny("Llama"), num_kv_blocks=64)
    run = Run(other)
    run.add(request(other, "r", turn, max_tokens=20))
    run.finish()
    assert StoredEngine(folder).ask(turn) == (run.tokens("r"), 112)  # of 119 tokens with keys and values


def test_what_is_in_memory_is_not_read(folder: Path):
    stored(folder)
    engine = StoredEngine(folder)
    engine.ask(PROMPT)
    num_read = engine.disk.counts.num_read
    assert engine.ask(PROMPT)[1] == NUM_STORED and engine.disk.counts.num_read == num_read == 6


def test_only_what_memory_lacks_is_read(folder: Path):
    stored(folder)
    engine = StoredEngine(folder)
    engine.ask(PROMPT[:50])
    assert engine.disk.counts.num_read == 3
    assert engine.ask(PROMPT)[1] == NUM_STORED and engine.disk.counts.num_read == 6


def test_beside_swapped_blocks_nothing_is_lost(folder: Path):
    """Blocks that are loaded into may be those that the same step copies to host memory."""
    prompts = [tuple(random.Random(seed).choices(range(4, 290), k=100)) for seed in range(8)]
    expected = stored(folder, *prompts)
    engine = StoredEngine(folder, num_kv_blocks=16, swap_space=2**23)
    for _ in range(3):
        assert [engine.ask(prompt)[0] for prompt in prompts] == expected
    assert engine.disk.counts.num_read >= 8 * 6
    assert engine.engine.stats().blocks.num_host > 0
    engine.engine.scheduler.check_integrity()


def test_a_step_that_fails_while_it_loads_costs_nothing_but_time(folder: Path):
    (tokens,) = stored(folder)
    engine = StoredEngine(folder)
    launch, failed = engine.engine.runner.launch, []

    def fail_once(plan):
        if plan.loads and not failed:
            failed.append(plan)
            raise RuntimeError("injected")
        return launch(plan)

    engine.engine.runner.launch = fail_once  # type: ignore[method-assign]
    assert engine.ask(PROMPT)[0] == tokens and failed


# --- Whose, and of what ---------------------------------------------------------------------------------------------


def test_other_salts_and_tenants_find_nothing(folder: Path):
    server = {"api_key": ("one", "two")}
    first = StoredEngine(folder, **server)
    first.ask(PROMPT, tenant="key-1", salt="salt")
    first.end()
    engine = StoredEngine(folder, **server)
    for tenant, salt in (("key-2", "salt"), ("key-1", None), ("key-1", "other"), (None, "salt")):
        assert engine.ask(PROMPT, tenant=tenant, salt=salt)[1] == 0
        engine.engine.scheduler.tables.cache.clear()
    assert engine.ask(PROMPT, tenant="key-1", salt="salt")[1] == NUM_STORED


def test_blocks_belong_to_the_key_whatever_its_place(folder: Path):
    first = StoredEngine(folder, api_key=("one", "two"))
    first.ask(PROMPT, tenant="key-1")
    first.end()
    engine = StoredEngine(folder, api_key=("two", "one"))
    assert engine.ask(PROMPT, tenant="key-1")[1] == 0
    assert engine.ask(PROMPT, tenant="key-2")[1] == NUM_STORED


def test_the_files_say_nothing_of_keys_and_salts(folder: Path):
    engine = StoredEngine(folder, api_key=("secret-key",))
    engine.ask(PROMPT, tenant="key-1", salt="secret-salt")
    engine.end()
    for file in folder.iterdir():
        assert not any(secret in file.read_bytes() for secret in (b"secret", b"key-1"))


def test_the_names_of_files_differ_between_folders(tmp_path: Path):
    """Who knows a prompt and a key cannot tell from names that it was asked."""
    server = ServerConfig(api_key=("one",))
    disks = [KVDisk(BlockFolder(tmp_path / name, 2**20)) for name in "ab"]
    asked = request(build(tiny("Llama")), "r", PROMPT)
    assert len({disk.contexts("print", server).of(asked) for disk in disks}) == 1  # without a key
    assert len({disk.contexts("print", server).of(replace(asked, tenant="key-1")) for disk in disks}) == 2


@pytest.mark.parametrize(
    "other",
    [
        {"model": "Qwen2"},
        {"dtype": "float32"},
        {"kv_cache_dtype": "int8"},
        {"block_size": 8},
        {"enforce_eager": True},
        {"quantization": "int8"},
    ],
    ids=lambda other: next(iter(other)),
)
def test_blocks_of_another_model_or_layout_are_not_found(other: dict[str, object], folder: Path):
    stored(folder, dtype="bfloat16")
    given = {"dtype": "bfloat16", **other}
    if "model" in given:
        given["model"] = tiny(str(given["model"]))
    assert StoredEngine(folder, **given).ask(PROMPT)[1] == 0


def test_other_random_weights_are_another_model(folder: Path):
    stored(folder, load_format="dummy", seed=1)
    assert StoredEngine(folder, load_format="dummy", seed=2).ask(PROMPT)[1] == 0


# --- Damage ---------------------------------------------------------------------------------------------------------

DAMAGES: dict[str, Callable[[Path], object]] = {
    "truncated": lambda file: file.write_bytes(file.read_bytes()[:-7]),
    "empty": lambda file: file.write_bytes(b""),
    "flipped": lambda file: file.write_bytes(_flipped(file.read_bytes())),
    "of another block": lambda file: file.write_bytes(_other(file).read_bytes()),
    "deleted": lambda file: file.unlink(),
    "a folder": lambda file: (file.unlink(), file.mkdir()),
    "a pipe": lambda file: (file.unlink(), os.mkfifo(file)),
}


def _flipped(data: bytes) -> bytes:
    return data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :]


def _other(file: Path) -> Path:
    return next(other for other in files(file.parent) if other != file)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_makes_the_prompt_cold_from_there(
    damage: str, folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    (tokens,) = stored(folder)
    found = set()
    for name in [file.name for file in files(folder)]:
        copy = tmp_path / name
        copy.mkdir(mode=0o700)
        for file in folder.iterdir():
            (copy / file.name).write_bytes(file.read_bytes())
        engine = StoredEngine(copy)
        DAMAGES[damage](copy / name)
        with caplog.at_level(logging.WARNING, "quire.kv_disk"):
            answer, num_found = engine.ask(PROMPT)
        assert answer == tokens
        found.add(num_found)
        assert sum(engine.disk.counts.misses.values()) == (num_found < NUM_STORED)
        engine.end()
    assert found == {0, 16, 32, 48, 64, 80, NUM_STORED}  # the last: of the answer
    caplog.clear()


# --- Speed, space and the end -----------------------------------------------------------------------------------------


def test_reading_that_is_predicted_to_be_slower_is_left_out_and_tried_again(folder: Path):
    (tokens,) = stored(folder)
    engine = StoredEngine(folder, token_s=0.001)
    engine.ask(PROMPT[50:])  # after it the time of a token is known
    assert engine.disk._cache is not None
    num_bytes = NUM_STORED // 16 * engine.disk._cache.bytes_per_block
    engine.disk._bytes_per_s = num_bytes / 0.105  # to compute takes 0.096 s
    found = []
    for _ in range(2):
        answer, num_found = engine.ask(PROMPT)
        assert answer == tokens
        found.append(num_found)
        engine.engine.scheduler.tables.cache.clear()
    assert found == [0, NUM_STORED] and engine.disk.counts.misses["slower"] == 1


@pytest.mark.parametrize(
    ("token_s", "num_read"), [(0.0, 1), (0.01, 1), (0.05, 2), (1.0, 4)], ids=["unknown", "short", "long", "longest"]
)
def test_a_slow_disk_gives_what_it_has_read_while_it_would_be_computed(
    token_s: float, num_read: int, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    (tokens,) = stored(folder)
    engine = StoredEngine(folder, token_s=token_s)
    engine.ask(PROMPT[50:])  # after it the time of a token is known
    now, read = [0.0], engine.disk._folder.read

    def read_slowly(content, into):
        now[0] += 3.0
        read(content, into)

    monkeypatch.setattr(engine.disk, "_clock", lambda: now[0])
    monkeypatch.setattr(engine.disk._folder, "read", read_slowly)
    assert engine.ask(PROMPT) == (tokens, 16 * num_read)
    assert engine.disk.counts.misses["slower"] == 1


def fetched(folder: Path) -> tuple[KVDisk, EngineRequest, StoredPrefix]:
    """A store that has read the six blocks of a request, which wait in memory."""
    stored(folder)
    engine = StoredEngine(folder)
    asked = engine.request(PROMPT)
    first = engine.disk.fetch(asked, 1.0)
    assert first is not None and first.num_blocks == 6
    return engine.disk, asked, first


def test_what_waits_in_memory_for_the_engine_is_bounded(folder: Path, monkeypatch: pytest.MonkeyPatch):
    disk, asked, first = fetched(folder)
    monkeypatch.setattr(disk_store, "MAX_HELD_BYTES", 2 * len(first.data))  # of which it may have three quarters
    second = disk.fetch(asked, 1.0)
    assert second is not None and second.num_blocks == 3
    assert disk.fetch(asked, 1.0) is None
    first.take(0)
    del second
    assert disk.fetch(asked, 1.0) is not None


def test_who_comes_finds_room_however_much_another_account_has(folder: Path, monkeypatch: pytest.MonkeyPatch):
    disk, asked, first = fetched(folder)
    monkeypatch.setattr(disk_store, "MAX_HELD_BYTES", 8 * len(first.data) // 6)
    assert disk.fetch(asked, 1.0) is None
    others = [disk.fetch(replace(asked, account=f"address-{number}"), 1.0) for number in range(2)]
    assert others[0] is not None and others[0].num_blocks == 1  # three quarters of two blocks
    assert others[1] is None
    first.take(0)
    again = disk.fetch(replace(asked, account="address-1"), 1.0)
    assert again is not None and again.num_blocks == 5


def test_the_folder_is_bounded_and_keeps_what_was_used_last(folder: Path):
    size = len(stored(folder)) and files(folder)[0].stat().st_size
    for file in files(folder):
        file.unlink()
    prompts = [tuple(random.Random(seed).choices(range(4, 290), k=100)) for seed in range(4)]
    expected = stored(folder, *prompts, space=16 * size)
    assert len(files(folder)) <= 16
    engine = StoredEngine(folder, space=16 * size)
    assert engine.ask(prompts[3]) == (expected[3], NUM_STORED)
    assert engine.ask(prompts[0]) == (expected[0], 0)


def test_what_the_writer_dropped_is_written_at_the_end(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(block_writer, "MAX_QUEUED_BYTES", 0)
    engine = StoredEngine(folder)
    tokens, _ = engine.ask(PROMPT)
    assert engine.disk.counts.num_dropped and not files(folder)
    engine.end()
    assert len(files(folder)) == 7
    assert StoredEngine(folder).ask(PROMPT) == (tokens, NUM_STORED)


@pytest.mark.parametrize("end", [{"limit_s": 0.0}, {"has_ended": False}], ids=["no time", "the engine hangs"])
def test_the_end_does_not_wait_longer_and_does_not_touch_a_running_engine(
    end: dict[str, bool], folder: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(block_writer, "MAX_QUEUED_BYTES", 0)
    engine = StoredEngine(folder)
    engine.ask(PROMPT)
    engine.end(**end)
    assert not files(folder)
    BlockFolder(folder, 2**20)  # others may have it


def test_what_is_not_on_disk_is_not_waited_for(folder: Path):
    stored(folder)
    engine = StoredEngine(folder)
    assert engine.disk.limit_s(engine.request(PROMPT)) == disk_store.UNKNOWN_LIMIT_S
    assert not engine.disk.limit_s(engine.request(PROMPT[:16]))  # the last token is always computed
    assert not engine.disk.limit_s(engine.request(PROMPT[1:]))
    assert not engine.disk.limit_s(request(engine.engine, "r", PROMPT, prompt_logprobs=1))


def test_what_is_in_memory_is_not_waited_for(folder: Path, monkeypatch: pytest.MonkeyPatch):
    stored(folder)
    engine = StoredEngine(folder)
    engine.ask(PROMPT[:50])
    assert engine.disk.limit_s(engine.request(PROMPT))
    assert not engine.disk.limit_s(engine.request((*PROMPT[:50], *PROMPT[:50])))
    engine.ask(PROMPT)
    assert not engine.disk.limit_s(engine.request(PROMPT))
    monkeypatch.setattr(disk_store, "MAX_LOOKED_UP", 2)
    assert engine.disk.limit_s(engine.request(PROMPT))  # for what comes behind a thread looks


def test_pinned_prefixes_are_read(folder: Path, tmp_path: Path):
    prefix = tmp_path / "prefix.txt"
    prefix.write_text("You are a helpful assistant. " * 8)
    first = StoredEngine(folder, pin_prefix=(str(prefix),))
    first.end()
    second = StoredEngine(folder, pin_prefix=(str(prefix),))
    assert second.disk.counts.num_read == len(files(folder)) > 2
    assert second.engine.scheduler.capacity == first.engine.scheduler.capacity
