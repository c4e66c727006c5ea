"""Models saved by transformers give transformers' tokens and logits on every backend of a CPU.

The models are tiny and random, with everything in use that their architectures may have (see saved_models.py).
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from app.checkpoint.inspection import inspect
from app.checkpoint.sizes import weight_bytes
from app.checkpoint.spec import QKNorm
from app.checkpoint.specs.registry import FAMILIES
from app.config.settings import make_config
from app.engine.execute.kv_cache import KVCache, KVLayout
from app.kernels.ops import PagedBatch
from app.models.decoder import Arena, Decoder
from app.models.file_source import FileSource
from app.models.loader import load_weights
from app.models.rope import query_scales, rope_tables
from tests.checkpoints import ARCHITECTURES
from tests.engine.driving import LogitRecorder, build, generate, request
from tests.kernels.reference import ReferenceOps
from tests.models.saved_mixtures import NAMES as MIXTURES
from tests.models.saved_mixtures import saved_mixture
from tests.models.saved_models import NAMES, saved

PROMPT = tuple(random.Random(3).choices(range(4, 300), k=40))
NUM_NEW = 8
COMPANY = (PROMPT[5:12], PROMPT[::-1], PROMPT[30:])


def expected_logits(name: str, token_ids: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
    """Transformers' logits [T, V] of a text in float32."""
    with torch.inference_mode():
        return saved(name, dtype)[1](torch.tensor([token_ids])).logits[0]


def logits_of(
    name: str, others: Sequence[tuple[int, ...]] = (), *, dtype: torch.dtype = torch.float32, **settings: object
) -> tuple[list[int], Tensor]:
    """The greedy answer to the prompt, and the logits [T, V] that it was drawn from; `others` are computed with it."""
    engine = build(saved(name, dtype)[0], **settings)
    recorder = LogitRecorder(engine)
    prompts = {"a": PROMPT} | {str(number): prompt for number, prompt in enumerate(others)}
    requests = [request(engine, key, prompt, max_tokens=NUM_NEW) for key, prompt in prompts.items()]
    answer = generate(engine, requests)["a"]
    return answer, torch.stack([logits for _, logits in sorted(recorder.logits[PROMPT].items())])


def relative_error(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize("is_eager", [True, False], ids=["eager", "graph"])
@pytest.mark.parametrize("name", NAMES)
def test_greedy_answers_are_those_of_transformers(name: str, is_eager: bool):
    """Eager torch operations, and the graph of native kernels; alone, and in chunks in company with the same bits."""
    answer, logits = logits_of(name, enforce_eager=is_eager)
    expected = expected_logits(name, (*PROMPT, *answer))[len(PROMPT) - 1 : -1]
    assert relative_error(logits, expected) < 1e-5
    assert answer == expected.argmax(-1).tolist()
    chunked, same = logits_of(name, COMPANY, enforce_eager=is_eager, max_num_batched_tokens=16, max_num_seqs=4)
    assert chunked == answer and torch.equal(same, logits)


@pytest.mark.parametrize("name", NAMES)
def test_reference_operations_give_the_logits_of_transformers(name: str):
    files = inspect(make_config({"model": str(saved(name)[0])}).model)
    spec = files.spec
    with FileSource(files) as source:
        weights = load_weights(spec, source)
    num_tokens, ops = len(PROMPT), ReferenceOps()
    layout = KVLayout(64, spec.num_layers, spec.num_kv_heads, spec.head_dim, torch.float32)
    arena = Arena.allocate(spec, num_tokens, num_tokens, torch.float32)
    tables = torch.tensor([[0], [1]], dtype=torch.int32)
    ops.begin_step(PagedBatch(num_tokens, torch.arange(num_tokens), torch.ones(num_tokens).long(), tables, 64))
    decoder = Decoder(spec, weights, rope_tables(spec, 64, torch.float32), ops, query_scales(spec, 64))
    logits = decoder.forward(torch.tensor(PROMPT), torch.arange(num_tokens), KVCache(layout, 2).layers, arena)
    assert relative_error(logits, expected_logits(name, PROMPT)) < 1e-5


def test_longrope_takes_its_short_factors_where_the_context_is_not_longer_than_the_original():
    """Transformers takes them for texts of up to 32 tokens; we for all texts, or none."""
    short, long = (
        rope_tables(inspect(make_config({"model": str(saved("phi4-mini")[0]), **given}).model).spec, 33, torch.float32)
        for given in ({"max_model_len": 32}, {"max_model_len": 33})
    )
    rotary = saved("phi4-mini")[1].model.rotary_emb
    for tables, length in ((short, 32), (long, 33)):
        cos, sin = (half[0, :, :6] for half in rotary(torch.zeros(1), torch.arange(length)[None]))
        torch.testing.assert_close(tables[0][:length, :6], cos, rtol=0, atol=1e-6)
        torch.testing.assert_close(tables[0][:length, 8:14], sin, rtol=0, atol=1e-6)
        assert (tables[0][:, 6:8] == 1).all() and (tables[0][:, 14:] == 0).all()


@pytest.mark.parametrize("is_eager", [True, False], ids=["eager", "graph"])
@pytest.mark.parametrize("name", ["granite", "phi4-mini", "gemma2", "gemma3", "olmo2", "glm4"])
def test_bfloat16_is_nearly_as_exact_as_in_transformers(name: str, is_eager: bool):
    answer, logits = logits_of(name, dtype=torch.bfloat16, enforce_eager=is_eager)
    ids = (*PROMPT, *answer)
    exact = expected_logits(name, ids, torch.bfloat16)
    with torch.inference_mode():
        theirs = saved(name, torch.bfloat16)[1].to(torch.bfloat16)(torch.tensor([ids])).logits[0].float()
    saved(name, torch.bfloat16)[1].float()
    answers = slice(len(PROMPT) - 1, -1)
    assert relative_error(logits, exact[answers]) < 1.5 * relative_error(theirs, exact)


@pytest.mark.parametrize("name", ["granite", "gemma2", "gemma3", "olmo3", "glm4", "ministral3-images"])
def test_weights_take_the_memory_that_is_planned(name: str):
    files = inspect(make_config({"model": str(saved(name, torch.bfloat16)[0])}).model)
    spec = files.spec
    # Each head has its own copy of the norm of queries or keys.
    copies = spec.num_layers * (spec.num_heads + spec.num_kv_heads - 2) * spec.head_dim
    copied = 4 * copies if spec.qk_norm is QKNorm.HEADS else 0
    with FileSource(files) as source:
        assert load_weights(spec, source).num_bytes == weight_bytes(spec, None) + copied


def test_every_architecture_is_compared_with_transformers():
    folders = [*(saved(name)[0] for name in NAMES), *(saved_mixture(name)[0] for name in MIXTURES)]
    compared = {inspect(make_config({"model": str(folder)}).model).spec.architecture for folder in folders}
    assert compared | {f"{name}ForCausalLM" for name in ARCHITECTURES} == set(FAMILIES)


def test_the_files_say_whether_only_their_text_is_loaded():
    for name, summary in (("gemma3-images", "safetensors, text only"), ("gemma3", "safetensors")):
        assert inspect(make_config({"model": str(saved(name)[0])}).model).summary == summary
        is_text_only = build(saved(name)[0], enforce_eager=True).model_info.is_text_only
        assert is_text_only == (name == "gemma3-images")


def test_quantized_weights_of_reordered_heads_stay_near_the_exact_ones():
    answer, logits = logits_of("phi4-mini", quantization="int8")
    expected = expected_logits("phi4-mini", (*PROMPT, *answer))[len(PROMPT) - 1 : -1]
    assert relative_error(logits, expected) < 0.05
