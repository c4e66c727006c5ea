"""Mixtures of experts give the tokens and logits of transformers, and a row's bits do not depend on company."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from app.checkpoint.expert_sizes import active_bytes, active_parameters
from app.checkpoint.inspection import inspect
from app.checkpoint.sizes import weight_bytes
from app.config.settings import make_config
from app.contract.errors import ModelRefused
from app.engine.execute.kv_cache import KVCache, KVLayout
from app.kernels.ops import PagedBatch
from app.models.decoder import Arena, Decoder
from app.models.file_source import FileSource
from app.models.loader import load_weights
from app.models.rope import rope_tables
from app.models.weights import DecoderWeights
from tests.engine.driving import LogitRecorder, build, generate, request
from tests.kernels.reference import ReferenceOps
from tests.models.saved_mixtures import NAMES, saved_mixture

PROMPT = tuple(random.Random(3).choices(range(4, 300), k=40))
NUM_NEW = 8


def expected_logits(name: str, token_ids: tuple[int, ...]) -> Tensor:
    """Transformers' logits [T, V] of a text in float32."""
    with torch.inference_mode():
        return saved_mixture(name)[1](torch.tensor([token_ids])).logits[0]


def logits_of(folder: Path, others: tuple[tuple[int, ...], ...] = (), **settings: object) -> tuple[list[int], Tensor]:
    """The greedy answer to the prompt, and the logits [T, V] that it was drawn from, beside other prompts."""
    engine = build(folder, **settings)
    recorder = LogitRecorder(engine)
    requests = [request(engine, f"{index}", prompt, max_tokens=NUM_NEW) for index, prompt in enumerate(others)]
    answer = generate(engine, [*requests, request(engine, "a", PROMPT, max_tokens=NUM_NEW)])["a"]
    return answer, torch.stack([logits for _, logits in sorted(recorder.logits[PROMPT].items())])


def loaded(folder: Path) -> DecoderWeights:
    files = inspect(make_config({"model": str(folder)}).model)
    with FileSource(files) as source:
        return load_weights(files.spec, source)


def relative_error(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize("is_eager", [True, False], ids=["eager", "graph"])
@pytest.mark.parametrize("name", NAMES)
def test_greedy_answers_are_those_of_transformers_and_bits_do_not_depend_on_company(name: str, is_eager: bool):
    folder = saved_mixture(name)[0]
    answer, logits = logits_of(folder, enforce_eager=is_eager)
    expected = expected_logits(name, (*PROMPT, *answer))[len(PROMPT) - 1 : -1]
    assert relative_error(logits, expected) < 1e-5
    assert answer == expected.argmax(-1).tolist()
    # One prompt sends every token to the same experts.
    others = ((5,) * 33, tuple(range(9, 80)), (7,), PROMPT[::-1])
    for given in ({"max_num_batched_tokens": 16, "max_num_seqs": 4}, {"max_num_seqs": 8}):
        again, same = logits_of(folder, others, enforce_eager=is_eager, **given)
        assert again == answer and torch.equal(same, logits)


@pytest.mark.parametrize("name", NAMES)
def test_reference_operations_give_the_logits_of_transformers(name: str):
    folder = saved_mixture(name)[0]
    spec, weights = inspect(make_config({"model": str(folder)}).model).spec, loaded(folder)
    num_tokens, ops = len(PROMPT), ReferenceOps()
    layout = KVLayout(64, spec.num_layers, spec.num_kv_heads, spec.head_dim, torch.float32)
    arena = Arena.allocate(spec, num_tokens, num_tokens, torch.float32)
    tables = torch.tensor([[0], [1]], dtype=torch.int32)
    ops.begin_step(PagedBatch(num_tokens, torch.arange(num_tokens), torch.ones(num_tokens).long(), tables, 64))
    decoder = Decoder(spec, weights, rope_tables(spec, 64, torch.float32), ops)
    logits = decoder.forward(torch.tensor(PROMPT), torch.arange(num_tokens), KVCache(layout, 2).layers, arena)
    assert relative_error(logits, expected_logits(name, PROMPT)) < 1e-5


@pytest.mark.parametrize("name", NAMES)
def test_weights_take_the_memory_that_is_planned_and_a_part_is_read_for_a_token(name: str):
    folder = saved_mixture(name, torch.bfloat16)[0]
    spec, weights = inspect(make_config({"model": str(folder)}).model).spec, loaded(folder)
    # Norms of queries and keys are kept once for each head.
    norms = sum(layer.qk_norm.nbytes - 2 * 2 * spec.head_dim for layer in weights.layers if layer.qk_norm is not None)
    assert weights.num_bytes - norms == weight_bytes(spec, None)
    experts = spec.experts
    assert experts is not None
    idle = sum(layer.has_experts for layer in spec.layers) * (experts.count - experts.per_token)
    idle *= 3 * experts.width * spec.hidden_size
    assert active_parameters(spec) == spec.num_parameters() - idle
    table = 0 if spec.tie_word_embeddings else spec.vocab_size * spec.hidden_size
    assert active_bytes(spec, None) == weights.num_bytes - norms - 2 * (idle + table)


def stacked(name: str, target: Path) -> Path:
    """A copy of a model as transformers has it in memory: all experts of a layer as one tensor."""
    shutil.copytree(saved_mixture(name)[0], target)
    is_granite = name.startswith("granite")
    stored = load_file(target / "model.safetensors")
    renamed = {f"{key}.weight" if key.endswith("_moe.router") else key: value for key, value in stored.items()}
    for key, tensor in list(saved_mixture(name)[1].state_dict().items()):
        if ".experts." in key or "mlp.gate." in key or ".router." in key:
            renamed[key] = tensor.clone()
    old = ("block_sparse_moe.experts.", "w1", "input_linear", "output_linear", "router.layer", "sparse_moe.gate")
    numbered = [key for key in renamed if any(part.isdigit() for part in key.split(".")[4:])]
    for key in [*numbered, *(key for key in renamed if not is_granite and "block_sparse_moe" in key)]:
        renamed.pop(key, None)
    for key in [key for key in renamed if "block_sparse_moe" in key and any(part in key for part in old[2:])]:
        del renamed[key]
    save_file(renamed, target / "model.safetensors")
    return target


@pytest.mark.parametrize("name", ["mixtral", "qwen2-moe", "qwen3-moe", "granite-moe-shared"])
def test_experts_may_be_one_tensor(name: str, tmp_path: Path):
    folder = stacked(name, tmp_path / "model")
    assert any(key.endswith("experts.gate_up_proj") for key in load_file(folder / "model.safetensors"))
    answer, logits = logits_of(folder)
    expected, same = logits_of(saved_mixture(name)[0])
    assert answer == expected and torch.equal(logits, same)


@pytest.mark.parametrize(
    ("name", "key", "change"),
    [
        ("mixtral", "model.layers.1.block_sparse_moe.experts.7.w2.weight", lambda tensor: None),
        ("mixtral", "model.layers.0.block_sparse_moe.experts.3.w1.weight", lambda tensor: tensor.t()),
        ("qwen3-moe", "model.layers.3.mlp.gate.weight", lambda tensor: tensor[:-1]),
        ("qwen2-moe", "model.layers.0.mlp.shared_expert_gate.weight", lambda tensor: tensor[0]),
        ("granite-moe", "model.layers.0.block_sparse_moe.input_linear.weight", lambda tensor: tensor.flatten(0, 1)),
        ("granite-moe", "model.layers.0.block_sparse_moe.input_linear.weight", lambda tensor: tensor.transpose(0, 1)),
        ("granite-moe", "model.layers.1.block_sparse_moe.output_linear.weight", lambda tensor: tensor[1:]),
        ("granite-moe", "model.layers.1.block_sparse_moe.output_linear.weight", lambda tensor: tensor.int()),
    ],
)
def test_a_tensor_of_another_shape_or_type_is_refused_by_its_name(name, key, change, tmp_path: Path):
    folder = shutil.copytree(saved_mixture(name)[0], tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    changed = change(tensors.pop(key))
    save_file(tensors if changed is None else tensors | {key: changed.contiguous()}, folder / "model.safetensors")
    with pytest.raises(ModelRefused, match=key.replace(".", r"\.")) as refusal:
        inspect(make_config({"model": str(folder)}).model)
    assert "\n" not in refusal.value.message


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_quantized_experts_stay_near_the_exact_ones(quantization: str):
    answer, logits = logits_of(saved_mixture("qwen2-moe")[0], quantization=quantization)
    expected = expected_logits("qwen2-moe", (*PROMPT, *answer))[len(PROMPT) - 1 : -1]
    assert relative_error(logits, expected) < {"int8": 0.05, "int4": 0.4}[quantization]


@pytest.mark.parametrize("name", NAMES)
def test_a_steps_cost_knows_the_share_of_the_experts_in_what_is_read(name: str):
    folder = saved_mixture(name)[0]
    spec = inspect(make_config({"model": str(folder)}).model).spec
    assert spec.experts is not None
    share, per_token = loaded(folder).expert_share, spec.experts.per_token / spec.experts.count
    all_bytes = active_bytes(replace(spec, experts=replace(spec.experts, per_token=spec.experts.count)), None)
    assert active_bytes(spec, None) == pytest.approx(all_bytes * (1 - share + share * per_token), rel=1e-3)
    assert build(folder, enforce_eager=True).scheduler.budget.cost.experts == share
