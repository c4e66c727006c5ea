"""A model in a GGUF file gives the tokens of the same model's folder, and says what becomes of quantized weights."""

from __future__ import annotations

import json
import logging
import random
from pathlib import Path

import numpy as np
import pytest
from torch.nn.functional import kl_div, log_softmax

from app.cli import main
from app.contract.errors import ModelRefused
from app.contract.sampling_params import SamplingParams
from app.llm import LLM
from benchmarks.perplexity.scored_model import ScoredModel
from tests.checkpoints import tiny
from tests.gguf_blocks import GROUPED
from tests.gguf_writer import GGUF_MODELS, model_fields, stored_tensors, text_fields, tiny_gguf, write_gguf
from tests.quantized_models import MIXED, random_gguf

SETTINGS = {"max_model_len": 64, "num_kv_blocks": 8, "max_num_seqs": 2}
PARAMS = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=5)
PROMPTS = ["the quick brown fox", [5, 6, 7, 300, 8, *range(100, 124)]]  # the second is longer than windows


def answers(model: Path, **settings: object) -> list[tuple[list[int], object]]:
    """Greedy tokens of two prompts, with log-probabilities."""
    llm = LLM(str(model), **SETTINGS, **settings)
    outputs = llm.generate(PROMPTS, PARAMS, use_tqdm=False)
    llm.close()
    return [(output.outputs[0].token_ids, output.outputs[0].logprobs) for output in outputs]


@pytest.mark.parametrize("is_eager", [True, False], ids=["eager", "graph"])
@pytest.mark.parametrize("architecture", GGUF_MODELS)
def test_the_tokens_and_their_log_probabilities_are_those_of_the_folder(
    architecture: str, is_eager: bool, tmp_path: Path
):
    fields, settings = GGUF_MODELS[architecture], {"dtype": "float32", "enforce_eager": is_eager}
    found = answers(tiny_gguf(tmp_path / "m.gguf", architecture, **fields), **settings)
    assert found == answers(tiny(architecture, **fields), **settings)


def test_the_gate_of_a_shared_expert_may_be_a_matrix_of_one_row(tmp_path: Path):
    """As llama.cpp's converter writes it since 2026; before, and in `tiny_gguf`, it is a vector."""
    folder, name = tiny("Qwen2Moe"), "blk.1.ffn_gate_inp_shexp.weight"
    tensors = stored_tensors(folder, "Qwen2Moe")
    kind, gate = tensors[name]
    assert gate.ndim == 1
    metadata = model_fields(folder, "Qwen2Moe") | text_fields(folder)
    file = write_gguf(tmp_path / "m.gguf", metadata, tensors | {name: (kind, gate[None])})
    assert answers(file) == answers(tiny_gguf(tmp_path / "vector.gguf", "Qwen2Moe"))
    file = write_gguf(tmp_path / "m.gguf", metadata, tensors | {name: (kind, np.stack([gate, gate]))})
    with pytest.raises(ModelRefused, match=r"has shape \[2, 64\]; according to the metadata it must be \[1, 64\]"):
        answers(file)


@pytest.mark.parametrize("kind", [*(kind.name for kind in GROUPED), "mixed"])
def test_log_probabilities_from_panels_are_those_of_decoded_weights(kind: str, tmp_path: Path):
    """Activations of one byte change them by some hundredths."""
    file = random_gguf(tmp_path / "m.gguf", *(("Q4_K", MIXED) if kind == "mixed" else (kind,)))
    found, wanted = answers(file), answers(file, dtype="float32")
    for (_, kept), (_, decoded) in zip(found, wanted, strict=True):
        first, other = kept[0], decoded[0]
        common = first.keys() & other.keys()
        assert len(common) >= 3
        assert max(abs(first[token].logprob - other[token].logprob) for token in common) < 0.05


# The relative error of logits (norm of the difference over the norm) that is allowed. Activations of two bytes err less
# than those in bfloat16, and those of one byte more: docs/benchmarks.md has what was measured.
LOGIT_ERRORS = {"Q4_1": 0.005, "Q5_1": 0.005, "Q5_K": 0.015}
LOGIT_ERROR = 0.01


@pytest.mark.parametrize("kind", [*(kind.name for kind in GROUPED), "mixed"])
def test_logits_from_panels_err_little_from_those_of_decoded_weights(kind: str, tmp_path: Path):
    file = random_gguf(tmp_path / "m.gguf", *(("Q4_K", MIXED) if kind == "mixed" else (kind,)))
    tokens = random.Random(0).choices(range(4, 300), k=128)
    exact = ScoredModel({"model": str(file), "dtype": "float32"}).logits(tokens).double()
    found = ScoredModel({"model": str(file)}).logits(tokens).double()
    assert 1e-4 < float((found - exact).norm() / exact.norm()) < LOGIT_ERRORS.get(kind, LOGIT_ERROR)
    divergence = kl_div(log_softmax(found, -1), log_softmax(exact, -1), reduction="none", log_target=True)
    assert float(divergence.sum(-1).mean()) < 1e-3


def experts_gguf(file: Path, kind: str, per_token: int) -> Path:
    """A mixture whose experts are of this type, or (mixed) of several; so many of four compute a token."""
    others = {"ffn_up_exps": "Q5_0", "ffn_down_exps": "Q6_K"}
    fields = {"num_experts": 4, "num_experts_per_tok": per_token, "moe_intermediate_size": 256}
    return random_gguf(file, *(("Q4_K", others) if kind == "mixed" else (kind,)), architecture="Qwen3Moe", **fields)


@pytest.mark.parametrize("kind", [*(kind.name for kind in GROUPED), "mixed"])
def test_experts_from_panels_err_little_from_those_of_decoded_weights(kind: str, tmp_path: Path):
    """All compute each token: else scores that are nearly equal would choose others."""
    file = experts_gguf(tmp_path / "m.gguf", kind, per_token=4)
    tokens = random.Random(0).choices(range(4, 300), k=64)
    exact = ScoredModel({"model": str(file), "dtype": "float32"}).logits(tokens).double()
    found = ScoredModel({"model": str(file)}).logits(tokens).double()
    largest = 2 * LOGIT_ERRORS.get(kind, LOGIT_ERROR)  # scores of experts err, too
    assert 1e-4 < float((found - exact).norm() / exact.norm()) < largest


@pytest.mark.parametrize("kind", [*(kind.name for kind in GROUPED), "mixed"])
def test_experts_from_panels_have_the_same_bits_alone_and_in_company(kind: str, tmp_path: Path):
    llm = LLM(str(experts_gguf(tmp_path / "m.gguf", kind, per_token=2)), **SETTINGS, enable_prefix_caching=False)
    together = llm.generate(PROMPTS, PARAMS, use_tqdm=False)
    for prompt, among in zip(PROMPTS, together, strict=True):
        (alone,) = llm.generate([prompt], PARAMS, use_tqdm=False)
        assert (alone.outputs[0].token_ids, alone.outputs[0].logprobs) == (
            among.outputs[0].token_ids,
            among.outputs[0].logprobs,
        )
    llm.close()


def test_a_chat_uses_the_template_of_the_file(tmp_path: Path):
    messages = [{"role": "user", "content": "the lazy dog"}]
    found = []
    for model in (tiny(), tiny_gguf(tmp_path / "m.gguf")):
        llm = LLM(str(model), **SETTINGS)
        found.append(llm.chat(messages, PARAMS, use_tqdm=False)[0].prompt_token_ids)
        llm.close()
    assert found[0] == found[1]


@pytest.mark.parametrize("quantization", [None, "int8", "int4"])
def test_one_line_says_what_becomes_of_quantized_weights(
    quantization: str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO, "quire.engine")
    answers(tiny_gguf(tmp_path / "m.gguf", kind="Q8_0"), quantization=quantization)
    lines = [(record.levelno, record.getMessage()) for record in caplog.records if "Q8_0" in record.getMessage()]
    if quantization is None:
        assert lines == [(logging.INFO, "Weights of the type Q8_0 are used as the file stores them.")]
    else:
        assert len(lines) == 1 and lines[0][0] == logging.WARNING
        assert f"quantizing them again to {quantization} makes the answers worse" in lines[0][1]


@pytest.mark.parametrize("fields", [{"enforce_eager": True}, {"dtype": "float32"}])
def test_weights_that_are_decoded_are_named(
    fields: dict[str, object], tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO, "quire.engine")
    answers(tiny_gguf(tmp_path / "m.gguf", kind="Q8_0"), **fields)
    dtype = fields.get("dtype", "bfloat16")
    assert f"Weights of the type Q8_0 are decoded to {dtype}." in caplog.messages


def test_weights_that_are_not_quantized_need_no_line(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "quire.engine")
    answers(tiny_gguf(tmp_path / "m.gguf", kind="F16"))
    assert not [record for record in caplog.records if "GGUF" in record.getMessage()]


def test_the_plan_names_the_types_of_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = tiny_gguf(tmp_path / "model-Q8_0.gguf", kind="Q8_0")
    assert main(["plan", str(file), "--json", "--ram", "8GiB"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert (figures["model"], figures["files"], figures["dtype"]) == ("model-Q8_0", "GGUF, Q8_0", "bfloat16")
    assert figures["weight_bytes"] < 2 * sum(figures["parameters"].values())
    assert main(["plan", str(file), "--ram", "8GiB"]) == 0
    assert "bfloat16 (files: GGUF, Q8_0)" in " ".join(capsys.readouterr().out.split())
