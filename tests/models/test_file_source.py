"""Weights from GGUF files are those of the same model's folder."""

from __future__ import annotations

import os
from operator import attrgetter
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from app.checkpoint.inspection import inspect
from app.config.settings import ModelConfig
from app.contract.errors import ModelRefused
from app.kernels.cpu.library import load_library
from app.kernels.cpu.packers import PanelPacker
from app.kernels.cpu.packing import PackedLinear, pack_stored
from app.kernels.cpu.records import Type
from app.kernels.ops import LinearWeight, StackedWeight, StoredWeight, Weight
from app.models.file_source import FileSource
from app.models.gguf import gguf_rows
from app.models.loader import load_weights
from tests.checkpoints import tiny
from tests.gguf_writer import GGUF_MODELS, model_fields, stored_tensors, text_fields, tiny_gguf, write_gguf
from tests.models.gguf.test_gguf_blocks import random_rows
from tests.models.test_mapped_file import resident


def read_all(model: Path, dtype: str = "auto") -> dict[str, torch.Tensor]:
    """All tensors of a model, by their names in its spec."""
    files = inspect(ModelConfig(model=str(model), dtype=dtype))
    spec = files.spec
    found = {}
    with FileSource(files) as source:
        for name, shape in spec.tensor_shapes().items():
            found[name] = torch.empty(shape, dtype=getattr(torch, spec.dtype))
            source.read(name, found[name])
    return found


@pytest.mark.parametrize("architecture", GGUF_MODELS)
@pytest.mark.parametrize("tied", [True, False])
def test_a_file_has_the_weights_of_the_folder(architecture: str, tied: bool, tmp_path: Path):
    """Rows of queries, keys and their biases in the order of the decoder; fused tensors in parts."""
    has_bias = architecture in ("Llama", "Glm4", "SeedOss")
    fields = GGUF_MODELS[architecture] | {"attention_bias": has_bias, "tie_word_embeddings": tied}
    wanted = read_all(tiny(architecture, **fields))
    found = read_all(tiny_gguf(tmp_path / "m.gguf", architecture, **fields))
    assert found.keys() == wanted.keys()
    if architecture.startswith("Gemma"):
        wanted |= {name: weight + 1 for name, weight in wanted.items() if name.endswith("norm.weight")}
    assert [name for name in wanted if not torch.equal(found[name], wanted[name])] == []


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0", "Q5_1"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_matrices_of_any_type_are_decoded_to_the_dtype(kind: str, dtype: str, tmp_path: Path):
    found = read_all(tiny_gguf(tmp_path / "m.gguf", "Qwen2", kind), dtype)
    stored = stored_tensors(tiny("Qwen2"), "Qwen2", kind)
    for name, values in (
        ("lm_head", stored["output.weight"][1]),
        ("model.embed_tokens", stored["token_embd.weight"][1]),
    ):
        number = gguf.GGMLQuantizationType[kind]
        wanted = torch.from_numpy(gguf.quants.dequantize(gguf.quants.quantize(values, number), number))
        assert torch.equal(found[f"{name}.weight"], wanted.to(getattr(torch, dtype)))


@pytest.mark.parametrize("step", [64, 200, 10**6])
def test_tensors_are_read_in_steps_of_any_size(step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = tiny_gguf(tmp_path / "m.gguf", kind="Q8_0")
    wanted = read_all(file)
    monkeypatch.setattr(gguf_rows, "_STEP_WEIGHTS", step)
    monkeypatch.setattr(gguf_rows, "_HELD_BYTES", 3 * step)
    found = read_all(file)
    assert [name for name in wanted if not torch.equal(found[name], wanted[name])] == []


def test_parts_of_a_split_are_one_model(tmp_path: Path):
    folder = tiny("Qwen3")
    tensors = list(stored_tensors(folder, "Qwen3").items())
    metadata = model_fields(folder, "Qwen3") | text_fields(folder) | {"split.tensors.count": len(tensors)}
    for number in range(3):
        fields = (metadata if number == 0 else {}) | {"split.no": number, "split.count": 3}
        write_gguf(tmp_path / f"m-{number + 1:05}-of-00003.gguf", fields, dict(tensors[number::3]))
    wanted = read_all(folder)
    found = read_all(tmp_path / "m-00002-of-00003.gguf")
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def large(file: Path) -> Path:
    """A file of 9 MB in blocks of Q4_K, whose queries have 2048 rows."""
    shapes = {
        "token_embd": (320, 2048), "blk.0.attn_q": (2048, 2048), "blk.0.attn_k": (256, 2048),
        "blk.0.attn_v": (256, 2048), "blk.0.attn_output": (2048, 2048), "blk.0.ffn_gate": (256, 2048),
        "blk.0.ffn_up": (256, 2048), "blk.0.ffn_down": (2048, 256),
    }  # fmt: skip
    tensors = {
        f"{name}.weight": ("Q4_K", random_rows("Q4_K", *shape[:1], shape[1] // 256)) for name, shape in shapes.items()
    }
    norms = dict.fromkeys(("output_norm.weight", "blk.0.attn_norm.weight", "blk.0.ffn_norm.weight"))
    fields = model_fields(
        tiny(hidden_size=2048, num_hidden_layers=1, intermediate_size=256, num_attention_heads=16,
             num_key_value_heads=2, head_dim=128, vocab_size=320), "Llama",
    )  # fmt: skip
    return write_gguf(file, fields, tensors | {name: ("F32", np.ones(2048, np.float32)) for name in norms})


def test_no_page_of_the_file_stays_in_memory(tmp_path: Path):
    file, held = large(tmp_path / "large.gguf"), []
    files = inspect(ModelConfig(model=str(file)))
    spec = files.spec
    with FileSource(files) as source:
        for name, shape in spec.tensor_shapes().items():
            out = torch.empty(shape, dtype=torch.bfloat16)
            source.read(name, out)
            held.append(resident(file))
    assert max(held) < 1 << 20 < file.stat().st_size


def test_only_pages_of_the_rows_that_were_asked_for_last_stay_in_memory(tmp_path: Path):
    file, held = large(tmp_path / "large.gguf"), []
    files = inspect(ModelConfig(model=str(file), dtype="bfloat16"))
    library = load_library()
    assert library is not None
    with FileSource(files) as source:
        for name in ("q_proj", "o_proj"):
            weight = source.stored(f"model.layers.0.self_attn.{name}.weight")
            held.append(resident(file))
            pack_stored(weight, library)
    assert max(held) < 1 << 20 < file.stat().st_size


@pytest.mark.parametrize("method", ["stored", "read"])
def test_a_file_that_is_truncated_while_it_is_loaded_is_rejected(method: str, tmp_path: Path):
    """Reading a mapped page behind the end of a file would end the process by a signal."""
    file = tiny_gguf(tmp_path / "m.gguf")
    files = inspect(ModelConfig(model=str(file)))
    with FileSource(files) as source:
        os.truncate(file, file.stat().st_size // 2)
        with pytest.raises(ModelRefused, match=r"m\.gguf became shorter while it was loaded"):
            if method == "read":
                source.read("model.norm.weight", torch.empty(64))
            else:
                source.stored("model.embed_tokens.weight")


def test_a_file_that_has_vanished_is_rejected(tmp_path: Path):
    file = tiny_gguf(tmp_path / "m.gguf")
    files = inspect(ModelConfig(model=str(file)))
    file.unlink()
    with pytest.raises(ModelRefused, match=r"m\.gguf cannot be loaded: "), FileSource(files):
        pass


class Recording(PanelPacker):
    """Remembers what it gets."""

    def __init__(self, *, takes_stored: bool) -> None:
        super().__init__(None, load_library() if takes_stored else None)
        self.kinds: list[type] = []

    def linear(self, weight: LinearWeight | StoredWeight, *, is_gated: bool = False) -> Weight:
        """See Packer.linear."""
        self.kinds.append(type(weight))
        return super().linear(weight, is_gated=is_gated)


@pytest.mark.parametrize("architecture", ["Llama", "Qwen2"])
@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_groups_of_the_file_are_packed_without_decoding(architecture: str, kind: str, tmp_path: Path):
    """Rows of queries and keys are in the decoder's order, as in decoded weights, and biases too."""
    model = str(tiny_gguf(tmp_path / "m.gguf", architecture, kind, attention_bias=architecture == "Llama"))
    files = inspect(ModelConfig(model=model, dtype="float32"))
    spec = files.spec
    found = []
    for takes_stored in (True, False):
        packer = Recording(takes_stored=takes_stored)
        with FileSource(files) as source:
            found.append(load_weights(spec, source, packer=packer))
        assert set(packer.kinds) == {StoredWeight if takes_stored else LinearWeight}
    for kept, decoded in zip(found[0].layers, found[1].layers, strict=True):
        for name in ("qkv", "o", "mlp.gate_up", "mlp.down"):
            one, other = attrgetter(name)(kept), attrgetter(name)(decoded)
            assert (one.unpacked() - other.unpacked()).abs().max() <= 1e-6 * other.unpacked().abs().max()
            assert (one.bias is None) == (other.bias is None)
            assert one.bias is None or torch.equal(one.bias, other.bias)
    assert isinstance(found[0].lm_head, PackedLinear) and isinstance(found[1].lm_head, PackedLinear)
    assert (found[0].lm_head.unpacked() - found[1].lm_head.unpacked()).abs().max() < 1e-6


@pytest.mark.parametrize("architecture", ["Llama", "Qwen2"])
def test_matrices_of_several_types_that_are_one_product_become_its_parts(architecture: str, tmp_path: Path):
    """As in Q4_K_M files, where values and the last product of a layer have more bits than the rest."""
    folder = tiny(architecture, attention_bias=architecture == "Llama")
    tensors = stored_tensors(folder, architecture, "Q4_0")
    for name, kind in (("attn_v", "Q8_0"), ("ffn_up", "Q5_1"), ("ffn_down", "Q8_0")):
        tensors[f"blk.0.{name}.weight"] = (kind, stored_tensors(folder, architecture, kind)[f"blk.0.{name}.weight"][1])
    tensors["blk.1.attn_k.weight"] = ("F16", tensors["blk.1.attn_k.weight"][1])
    fields = model_fields(folder, architecture) | text_fields(folder)
    files = inspect(ModelConfig(model=str(write_gguf(tmp_path / "m.gguf", fields, tensors)), dtype="bfloat16"))
    spec = files.spec
    found = []
    for takes_stored in (True, False):
        with FileSource(files) as source:
            packer = PanelPacker(None, load_library() if takes_stored else None)
            found.append(load_weights(spec, source, packer=packer))
    first, second = found[0].layers[0], found[0].layers[1]
    assert types_of(first.qkv) == [Type.Q4_0, Type.INT8] and types_of(first.mlp.gate_up) == [Type.Q4_0, Type.Q5_1]
    assert types_of(second.qkv) == [Type.Q4_0, Type.BFLOAT16, Type.Q4_0]
    for kept, decoded in zip(found[0].layers, found[1].layers, strict=True):
        for weight, other, is_gated in (
            (kept.qkv, decoded.qkv, False),
            (kept.mlp.gate_up, decoded.mlp.gate_up, True),
        ):
            parts = parts_of(weight)
            assert all(part.is_interleaved == (len(parts) == 1 and is_gated) for part in parts)
            matrix = torch.cat([part.unpacked() for part in parts])
            assert (matrix - other.unpacked()).abs().max() <= 2**-8 * other.unpacked().abs().max()
            if other.bias is not None:
                assert torch.equal(torch.cat([part.bias[: part.n] for part in parts]), other.bias[: other.n])


@pytest.mark.parametrize("tied", [True, False])
def test_numbers_of_the_models_type_are_packed_without_a_copy(tied: bool, tmp_path: Path):
    """The panels of a folder are those of its matrices as torch operations pack them; so are the biases."""
    folder = tiny("Qwen2", torch_dtype="bfloat16", tie_word_embeddings=tied)
    files = inspect(ModelConfig(model=str(folder)))
    found = []
    for takes_stored in (True, False):
        packer = Recording(takes_stored=takes_stored)
        with FileSource(files) as source:
            found.append(load_weights(files.spec, source, packer=packer))
        assert set(packer.kinds) == {StoredWeight if takes_stored else LinearWeight}
    assert isinstance(found[0].embedding, PackedLinear if tied else LinearWeight)
    for kept, copied in zip(found[0].layers, found[1].layers, strict=True):
        for name in ("qkv", "o", "mlp.gate_up", "mlp.down"):
            one, other = attrgetter(name)(kept), attrgetter(name)(copied)
            assert torch.equal(one.panels, other.panels) and one.is_interleaved == other.is_interleaved
            assert (one.bias is None) == (other.bias is None) and (
                one.bias is None or torch.equal(one.bias, other.bias)
            )
    assert torch.equal(found[0].lm_head.panels, found[1].lm_head.panels)


def parts_of(weight: Weight) -> list[PackedLinear]:
    return list(weight.parts) if isinstance(weight, StackedWeight) else [weight]


def types_of(weight: Weight) -> list[Type]:
    return [part.type for part in parts_of(weight)]
