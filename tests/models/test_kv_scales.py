"""Scales of an FP8 cache: powers of two in the weights, which change the cache and nothing else."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from app.checkpoint.inspection import inspect
from app.checkpoint.model_files import ModelFiles
from app.config.settings import ModelConfig
from app.contract.errors import ModelRefused
from app.kernels.ops import PagedBatch
from app.models.decoder import Arena, Decoder
from app.models.file_source import FileSource
from app.models.kv_scales import E4M3_MAX, HEADROOM, MAX_EXPONENT, MIN_EXPONENT, KVScales, read_kv_scales
from app.models.loader import DTYPES, load_weights
from app.models.rope import rope_tables
from tests.checkpoints import ARCHITECTURES, damaged_copy, tiny
from tests.kernels.reference import ReferenceOps

NUM_TOKENS = 24


def forward(folder: Path, scales: KVScales | None, dtype: str) -> tuple[Tensor, Tensor]:
    """The logits of a prompt, and the cache [layers, 2, blocks, slots, kv heads, width] behind it."""
    files = inspect(ModelConfig(model=str(folder), dtype=dtype))
    spec = files.spec
    with FileSource(files) as source:
        weights = load_weights(spec, source)
    if scales is not None:
        scales.fold(weights, spec)
    cache = torch.zeros(spec.num_layers, 2, 3, 16, spec.num_kv_heads, spec.head_dim, dtype=DTYPES[dtype])
    arena, ops = Arena.allocate(spec, NUM_TOKENS, 8, DTYPES[dtype]), ReferenceOps()
    positions, rows = torch.arange(NUM_TOKENS), torch.ones(NUM_TOKENS, dtype=torch.int64)
    tables = torch.tensor([[0, 0], [1, 2]], dtype=torch.int32)
    ops.begin_step(PagedBatch(NUM_TOKENS, positions, rows, tables, 16))
    ropes = rope_tables(spec, NUM_TOKENS, torch.float32)
    decoder = Decoder(spec, weights, ropes, ops)
    layers = [(layer[0], layer[1]) for layer in cache]
    logits = decoder.forward(torch.arange(5, 5 + NUM_TOKENS), torch.arange(8) * 3, layers, arena)
    return logits, cache


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_scales_in_the_weights_change_no_bit_of_the_logits_and_divide_what_is_cached(architecture, dtype):
    folder = tiny(architecture, torch_dtype=dtype, attention_bias=True)
    scales = KVScales(torch.tensor([[8.0, 0.25], [0.5, 1.0]]), torch.tensor([[0.125, 2.0], [4.0, 0.5]]))
    logits, cache = forward(folder, None, dtype)
    scaled_logits, scaled_cache = forward(folder, scales, dtype)
    assert torch.equal(scaled_logits, logits)
    by_head = torch.stack([scales.keys_LG, scales.values_LG], 1)[:, :, None, None, :, None]
    assert torch.equal(scaled_cache * by_head, cache.float())


def test_scales_are_the_least_powers_of_two_that_are_enough():
    exact, more, less = 2.0**-3, 1.01 * 2.0**-3, 0.99 * 2.0**-3
    scales = KVScales.covering(torch.tensor([[exact, more, less]]), torch.tensor([[1e-9, 1e9, 3.0]]))
    assert scales.keys_LG.tolist() == [[2.0**-3, 2.0**-2, 2.0**-3]]
    assert scales.values_LG.tolist() == [[2.0**MIN_EXPONENT, 2.0**MAX_EXPONENT, 4.0]]


@pytest.mark.parametrize("largest", [0.0, 1e-3, 17.0, 900.0, 30000.0])
def test_calibrated_scales_leave_room_below_the_largest_number_of_e4m3(largest):
    scale = float(KVScales.for_largest(torch.tensor([[largest]]), torch.tensor([[1.0]])).keys_LG)
    assert math.log2(scale).is_integer() and HEADROOM * largest / scale <= E4M3_MAX
    assert scale == 2.0**MIN_EXPONENT or HEADROOM * largest / scale > E4M3_MAX / 2


def with_tensors(tmp_path: Path, **tensors: Tensor) -> ModelFiles:
    """A checkpoint of two layers and two kv heads with more tensors; `0_k_scale` is self_attn.k_scale of layer 0."""
    folder = damaged_copy(tiny("Llama"), tmp_path / "model")
    file = folder / "model.safetensors"
    named = {f"model.layers.{name[0]}.self_attn.{name[2:]}": tensor for name, tensor in tensors.items()}
    save_file(load_file(file) | named, file)
    return inspect(ModelConfig(model=str(folder)))


def test_a_checkpoint_without_scales_has_none():
    assert read_kv_scales(inspect(ModelConfig(model=str(tiny("Llama"))))) is None


def test_scales_of_a_checkpoint_are_rounded_up_and_are_for_all_heads_or_for_each(tmp_path):
    files = with_tensors(
        tmp_path,
        **{
            "0_k_scale": torch.tensor(0.3),
            "0_v_scale": torch.tensor([0.25, 3.0]),
            "1_k_proj.k_scale": torch.tensor([1.0], dtype=torch.bfloat16),
            "1_v_proj.output_scale": torch.tensor([[[0.06]], [[5.0]]]),
        },
    )
    scales = read_kv_scales(files)
    assert scales.keys_LG.tolist() == [[0.5, 0.5], [1.0, 1.0]]
    assert scales.values_LG.tolist() == [[0.25, 4.0], [0.0625, 8.0]]


def test_an_old_checkpoint_has_one_scale_for_keys_and_values(tmp_path):
    files = with_tensors(tmp_path, **{f"{layer}_kv_scale": torch.tensor(0.5) for layer in range(2)})
    scales = read_kv_scales(files)
    assert (scales.keys_LG == 0.5).all() and (scales.values_LG == 0.5).all()


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"0_kv_scale": torch.tensor(0.5)}, "for some layers only, such as model.layers.0.self_attn.kv_scale"),
        (
            {f"{layer}_kv_scale": torch.tensor([0.5, 1.0, 2.0]) for layer in range(2)},
            r"type F32 and shape \[3\].*one for each of 2 heads",
        ),
        ({f"{layer}_kv_scale": torch.tensor(1) for layer in range(2)}, "has type I64"),
        ({f"{layer}_kv_scale": torch.tensor(0.0) for layer in range(2)}, r"is \[0.0\].*a positive number"),
        ({f"{layer}_kv_scale": torch.tensor(math.nan) for layer in range(2)}, r"is \[nan\].*a positive number"),
    ],
)
def test_scales_that_cannot_be_are_rejected_by_name(tensors, words, tmp_path):
    files = with_tensors(tmp_path, **tensors)
    with pytest.raises(ModelRefused, match=words):
        read_kv_scales(files)


def test_a_checkpoint_in_which_only_the_cache_is_quantized_is_served(tmp_path):
    scheme = {"num_bits": 8, "type": "float"}
    given = {"quant_method": "compressed-tensors", "config_groups": {}, "kv_cache_scheme": scheme}
    inspect(ModelConfig(model=str(damaged_copy(tiny("Llama"), tmp_path / "cache", quantization_config=given))))
    for number, changed in enumerate(({"config_groups": {"group_0": {}}}, {"quant_method": "fp8"})):
        folder = damaged_copy(tiny("Llama"), tmp_path / f"weights{number}", quantization_config=given | changed)
        with pytest.raises(ModelRefused, match="quantization_config"):
            inspect(ModelConfig(model=str(folder)))
