"""The real GGUF file, used directly, gives the answers of its weights: `make real-model`, then `pytest -m real`.

The reference is a folder of the file's weights in float32, dequantized by the `gguf` package and computed by
transformers.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.nn.functional import kl_div, log_softmax
from transformers import AutoModelForCausalLM

from app.checkpoint.hub import smollm2
from app.checkpoint.text_files import FolderText
from app.config.settings import make_config
from app.text.entry.frontend import TextFrontend
from benchmarks.perplexity import text
from benchmarks.perplexity.scored_model import ScoredModel
from tests.engine.driving import build, generate, request
from tests.engine.test_transformers_equality import Tally, compare
from tools.real_model import convert

pytestmark = pytest.mark.real
FILE = smollm2.local_file()
QUESTIONS = (
    "What is the capital of France?", "Name the three primary colours.", "Why is the sky blue?",
    "Write a haiku about rain.", "What is 17 + 25?",
)  # fmt: skip
NUM_NEW = 96


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file's weights as float32 safetensors."""
    if not FILE.exists():
        pytest.skip("there is no real model; run `make real-model`")
    target = tmp_path_factory.mktemp("real") / "float32"
    convert(FILE, target, is_exact=True)
    return target


@pytest.fixture(scope="module")
def reference(folder: Path) -> Iterator[torch.nn.Module]:
    """Its model in transformers."""
    yield AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def test_greedy_answers_in_float32_are_those_of_the_folder(folder: Path, reference: torch.nn.Module):
    template = TextFrontend.load(make_config({"model": str(folder)}).model, FolderText(folder)).chat_template
    prompts = [list(template.render([{"role": "user", "content": question}])) for question in QUESTIONS]
    engine = build(FILE, dtype="float32", max_model_len=512, num_kv_blocks=160)
    requests = [request(engine, str(i), prompt, max_tokens=NUM_NEW) for i, prompt in enumerate(prompts)]
    outputs = generate(engine, requests)
    tally = Tally()
    for index, prompt in enumerate(prompts):
        assert len(outputs[str(index)]) == NUM_NEW
        compare(engine, reference, prompt, outputs[str(index)], tally)
    print(f"{tally.num_ties} ties in {tally.num_tokens} tokens")
    assert tally.num_ties <= 1


@torch.inference_mode()
def test_predictions_from_the_weights_as_stored_are_near_those_of_the_folder(folder: Path, reference: torch.nn.Module):
    frontend = TextFrontend.load(make_config({"model": str(folder)}).model, FolderText(folder))
    model, sums = ScoredModel({"model": str(FILE)}), []
    for window in text.windows(frontend.tokenizer, 2):
        found_TV = log_softmax(model.logits(window), -1)
        expected_TV = log_softmax(reference(torch.tensor([window])).logits[0], -1)
        sums.append(kl_div(found_TV, expected_TV, reduction="none", log_target=True).sum(-1))
    divergence = float(torch.cat(sums).mean())
    print(f"KL {divergence:.6f}")
    assert divergence <= 1e-3
