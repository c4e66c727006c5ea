"""The cells, and the limits of a machine, computed by hand."""

from math import prod

import pytest

from app.checkpoint.inspection import inspect
from app.commands.measuring.workload import SHAPES, write_shape
from app.config.settings import make_config
from benchmarks.cpu.cells import (
    CELLS,
    FORMATS,
    KINDS,
    NUM_PROMPT,
    Cell,
    Probe,
    draw_prompts,
    kv_token_bytes,
    limit,
    rates,
    vocab_size,
    weight_bytes,
    work,
)
from benchmarks.limits import limits

MACHINE = Probe(read=38e9, bf16=468e9, int8=900e9, how="")


def test_decode_rates_exclude_the_first_token():
    assert rates(8, seconds=2.0, seconds_of_first=1.0) == (8 * 63 / 1.0, 8 * 128 / 1.0)


@pytest.mark.parametrize("shape", SHAPES)
def test_weight_bytes_are_those_of_all_matrices(shape, tmp_path):
    folder = write_shape(shape, tmp_path)
    spec = inspect(make_config({"model": str(folder), "load_format": "dummy"}).model).spec
    matrices = sum(prod(size) for size in spec.tensor_shapes().values() if len(size) == 2)
    assert weight_bytes(shape, "bf16") == 2 * matrices
    assert kv_token_bytes(shape) == 2 * spec.num_layers * spec.num_kv_heads * spec.head_dim * 2


def test_a_single_sequence_is_limited_by_memory_bandwidth():
    """269 MB of weights and few keys and values at 38 GB/s are about 140 tokens a second."""
    assert limit(Cell("s135", "bf16", 1), "decode", MACHINE) == pytest.approx(139, abs=2)
    assert limit(Cell("s135", "int8", 1), "decode", MACHINE) == pytest.approx(274, abs=4)


def test_many_sequences_are_limited_by_compute():
    """Products take 18.4 ms, keys and values 3.1 ms."""
    assert limit(Cell("s135", "bf16", 32), "decode", MACHINE) == pytest.approx(1490, abs=20)


def test_a_prefill_uses_the_output_head_for_last_tokens_only():
    found = limit(Cell("s135", "bf16", 8), "prefill", MACHINE)
    assert found == pytest.approx(468e9 / (2 * 106.2e6), rel=0.01)
    assert work(Cell("s135", "bf16", 8), "prefill").num_tokens == 8 * NUM_PROMPT


def test_int8_is_multiplied_as_int8_and_int4_as_bf16():
    prefill = {name: limit(Cell("s135", name, 32), "prefill", MACHINE) for name in FORMATS}
    assert prefill["int8"] / prefill["bf16"] == pytest.approx(900 / 468)
    assert prefill["int4"] == pytest.approx(prefill["bf16"])


def test_cells_are_unique():
    assert len({(cell.shape, cell.format, cell.batch) for cell in CELLS}) == len(CELLS)
    assert all(cell.shape in SHAPES and cell.format in FORMATS for cell in CELLS)
    required = {f"{cell} {kind}" for cell in CELLS for kind in KINDS if cell.required(kind)}
    assert required == {name for name in limits("cpu") if not name.startswith(("mixed load, ", "GGUF, "))}


def test_each_seed_has_its_own_prompts():
    first, again, other = (draw_prompts([128, 5], vocab_size("tiny"), seed) for seed in ("a", "a", "b"))
    assert first == again
    assert [len(prompt) for prompt in first] == [128, 5]
    assert first[0][:16] != other[0][:16]
    assert all(0 <= token_id < 4096 for token_id in first[0])
