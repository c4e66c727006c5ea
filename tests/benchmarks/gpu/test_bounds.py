"""Lower bounds of decode steps, prompts and complete loads on an H200, compared with tables."""

import pytest

from app.checkpoint.checkpoint_folder import Checkpoint
from app.checkpoint.spec import QKNorm
from benchmarks.gpu.bounds import H200, Work, decode_work, load_work, prefill_work, seconds
from benchmarks.gpu.loads import load_256, turned, uniform_load
from benchmarks.gpu.models import SHAPES, config_json, write_model
from tests.checkpoint.reading import read_spec

# Milliseconds of a decode step at a context of 1024, for batches of 1, 32, 128, 256, and of 256 with FP8 KV.
DECODE = {
    "Qwen3-0.6B": (0.30, 1.15, 3.77, 7.38, 3.88),
    "Llama-3.2-1B": (0.58, 0.82, 1.57, 2.80, 1.80),
    "Qwen3-4B": (1.91, 2.99, 6.37, 11.60, 7.10),
    "Llama-3.1-8B": (3.52, 4.49, 7.49, 12.85, 8.86),
    "Qwen3-14B": (6.55, 7.76, 11.50, 19.06, 14.06),
}
# Milliseconds of a prompt of 1k and of 8k tokens.
PREFILL = {
    "Qwen3-0.6B": (1.3, 19),
    "Llama-3.2-1B": (2.6, 26),
    "Qwen3-4B": (9.8, 100),
    "Llama-3.1-8B": (18.4, 167),
    "Qwen3-14B": (34.8, 309),
}
# Tokens per second of the 256 requests.
LOADS = {"Qwen3-0.6B": 36_500, "Llama-3.2-1B": 72_000, "Qwen3-4B": 18_200, "Llama-3.1-8B": 13_650, "Qwen3-14B": 8_350}


@pytest.mark.parametrize("model", DECODE)
def test_lower_bounds_of_decode_steps(model):
    floors = [seconds(decode_work(SHAPES[model], [1024] * batch), H200) for batch in (1, 32, 128, 256)]
    floors.append(seconds(decode_work(SHAPES[model], [1024] * 256, kv_item=1), H200))
    assert [round(1e3 * floor, 2) for floor in floors] == pytest.approx(DECODE[model], abs=0.011)


@pytest.mark.parametrize("model", PREFILL)
def test_lower_bounds_of_prefills(model):
    floors = [1e3 * seconds([prefill_work(SHAPES[model], [length])], H200) for length in (1024, 8192)]
    assert floors == pytest.approx(PREFILL[model], rel=0.03)


@pytest.mark.parametrize("model", LOADS)
def test_lower_bounds_of_loads(model):
    load = load_256()
    work = load_work(SHAPES[model], [len(prompt) for prompt in load.prompts], load.num_new_tokens)
    assert sum(load.num_new_tokens) / seconds(work, H200) == pytest.approx(LOADS[model], rel=0.01)


def test_lower_bound_of_the_uniform_load():
    prefill, decode = load_work(SHAPES["Qwen3-8B"], [1024] * 256, [1024] * 256)
    assert seconds([prefill], H200) == pytest.approx(4.7, abs=0.05)
    assert seconds([decode], H200) == pytest.approx(17.4, abs=0.05)


def test_attention_waits_for_the_products_of_its_layer():
    """Above some 180 rows products are bound by operations, which hide none of the bytes of the KV cache."""
    products, attention = decode_work(SHAPES["Llama-3.1-8B"], [1024] * 256)
    assert seconds([products], H200) == pytest.approx(products.operations / H200.operations)
    assert seconds([attention], H200) == pytest.approx(attention.num_bytes / H200.bandwidth)
    together = Work(products.num_bytes + attention.num_bytes, products.operations + attention.operations)
    assert seconds([products, attention], H200) > 1.1 * seconds([together], H200)


def test_reading_and_computing_overlap_within_a_step():
    assert seconds([Work(4.3e12, 79e12)], H200) == 1.0
    assert seconds([Work(4.3e9, 790e12)], H200) == 1.0
    assert seconds([Work(4.3e12), Work(0, 790e12)], H200) == 2.0
    assert seconds([], H200) == 0


def test_the_256_requests_are_those_of_nano_vllm():
    load = load_256()
    assert (len(load.prompts), load.num_prompt_tokens, sum(load.num_new_tokens)) == (256, 142_827, 133_966)
    assert load.prompts[0][:3] == (6311, 6890, 663)
    assert max(len(prompt) + new for prompt, new in zip(load.prompts, load.num_new_tokens, strict=True)) <= 2048


def test_another_turn_has_the_same_lengths_but_other_tokens():
    load = load_256()
    other = turned(load, 1)
    assert turned(load, 0) == load
    assert [len(prompt) for prompt in other.prompts] == [len(prompt) for prompt in load.prompts]
    assert not any(mine[0] == theirs[0] for mine, theirs in zip(load.prompts, other.prompts, strict=True))
    assert {len(prompt) for prompt in uniform_load(3, 7, 5).prompts} == {7}


@pytest.mark.parametrize("model", SHAPES)
def test_written_models_have_the_shapes_of_the_table(model, tmp_path):
    spec = read_spec(Checkpoint.open(write_model(model, tmp_path), with_weights=False))
    shape = SHAPES[model]
    assert (spec.num_layers, spec.hidden_size, spec.num_heads, spec.num_kv_heads, spec.head_dim) == (
        shape.num_layers, shape.hidden, shape.num_heads, shape.num_kv_heads, shape.head_dim,
    )  # fmt: skip
    assert (spec.intermediate_size, spec.vocab_size, spec.tie_word_embeddings) == (
        shape.ffn, shape.vocab, shape.is_tied,
    )  # fmt: skip
    assert (spec.qk_norm is QKNorm.HEADS) == model.startswith("Qwen3")
    assert (spec.dtype, spec.eos_token_ids) == ("bfloat16", ())
    assert config_json(model, num_layers=1)["num_hidden_layers"] == 1
