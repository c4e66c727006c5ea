"""A model in a GGUF file gives the tokens of the same model's folder, and says what becomes of quantized weights."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from app.cli import main
from app.contract.sampling_params import SamplingParams
from app.llm import LLM
from tests.checkpoints import ARCHITECTURES, tiny
from tests.gguf_writer import tiny_gguf

SETTINGS = {"max_model_len": 64, "num_kv_blocks": 8, "max_num_seqs": 2}
PARAMS = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
PROMPTS = ["the quick brown fox", [5, 6, 7, 300, 8]]


def answers(model: Path, **settings: object) -> list[list[int]]:
    """Greedy tokens of two prompts."""
    llm = LLM(str(model), **SETTINGS, **settings)
    outputs = llm.generate(PROMPTS, PARAMS, use_tqdm=False)
    llm.close()
    return [output.outputs[0].token_ids for output in outputs]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_tokens_are_those_of_the_folder(architecture: str, tmp_path: Path):
    found = answers(tiny_gguf(tmp_path / "m.gguf", architecture), dtype="float32")
    assert found == answers(tiny(architecture), dtype="float32")


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
        assert lines == [(logging.INFO, "The weights (GGUF, Q8_0) are decoded to bfloat16.")]
    else:
        assert len(lines) == 1 and lines[0][0] == logging.WARNING
        assert f"quantizing them again to {quantization} makes the answers worse" in lines[0][1]


def test_weights_that_are_not_quantized_need_no_line(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "quire.engine")
    answers(tiny_gguf(tmp_path / "m.gguf", kind="F16"))
    assert not [record for record in caplog.records if "GGUF" in record.getMessage()]


def test_the_plan_counts_decoded_weights_and_names_the_types_of_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    file = tiny_gguf(tmp_path / "model-Q8_0.gguf", kind="Q8_0")
    assert main(["plan", str(file), "--json", "--ram", "8GiB"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert (figures["model"], figures["files"], figures["dtype"]) == ("model-Q8_0", "GGUF, Q8_0", "bfloat16")
    assert figures["weight_bytes"] == 2 * sum(figures["parameters"].values())
    assert main(["plan", str(file), "--ram", "8GiB"]) == 0
    assert "bfloat16 (files: GGUF, Q8_0)" in " ".join(capsys.readouterr().out.split())
