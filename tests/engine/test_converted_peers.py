"""Tiny models that llama.cpp's script converts give the logits of their folders, and those of llama.cpp.

`QUIRE_LLAMA_CPP` is the folder of llama.cpp's programs (`make peers PEERS="llama.cpp gguf"` makes `.peers/llama.cpp`,
with the script and the vocabularies of real models); without it, these tests are skipped. The script converts only
tokenizers that it knows: GPT-2's here, whose vocabulary comes with llama.cpp, and for Gemma one of sentencepiece.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import log_softmax

from app.runtime.cores import num_cores
from app.text.tokens.gguf.gguf_tokenizer import load
from benchmarks.cpu.sides import GGUF_PACKAGE
from benchmarks.perplexity.llama_cpp import predict, read_windows
from benchmarks.perplexity.scored_model import ScoredModel
from benchmarks.perplexity.text import FILE
from tests.checkpoints import tiny
from tests.gguf_writer import GGUF_MODELS

PROGRAMS = Path(os.environ.get("QUIRE_LLAMA_CPP", "nowhere")).absolute()
SCRIPT = PROGRAMS / "convert_hf_to_gguf.py"
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not SCRIPT.exists(), reason="needs llama.cpp's programs and script (QUIRE_LLAMA_CPP)"),
]
# Without Qwen2, of which the script knows its own tokenizer alone, and Phi-3, whose rotary embedding llama.cpp chooses
# by the length of a text.
ARCHITECTURES = [name for name in GGUF_MODELS if name not in ("Qwen2", "Phi3")]
ADDED = ("<|endoftext|>", "<|user|>")  # which the script wants in GLM-4
VOCAB_SIZE = 50_261  # GPT-2's 50,257, the one that it lacks, and some without a text
NUM_PIECES = 556
OF_PIECES = ("Gemma", "Gemma2", "Gemma3")
EMBEDDING = 0.1
"""Multiplies embeddings that are the output's weights, too: else each token predicts itself for certain."""
# What differs from GGUF_MODELS. Transformers gives layers with windows of OLMo 3 this base, whatever a config.json says
# that has `rope_scaling`, and llama.cpp YaRN's usual numbers, as the published models. Only EXAONE 4 with 64 layers has
# windows there.
FIELDS: dict[str, dict[str, Any]] = {
    "Qwen2Moe": {"model_type": "qwen2_moe"}, "Qwen3Moe": {"model_type": "qwen3_moe"},
    "Gemma3": {"model_type": "gemma3_text"}, "SeedOss": {"model_type": "seed_oss"},
    "Olmo3": {
        "rope_theta": 500_000.0,
        "rope_scaling": GGUF_MODELS["Olmo3"]["rope_scaling"]
        | {"attention_factor": 1 + 0.1 * math.log(8.0), "beta_fast": 32.0, "beta_slow": 1.0},
    },
    "Exaone4": {"sliding_window": None, "sliding_window_pattern": 4, "layer_types": ["full_attention"] * 4},
}  # fmt: skip
WINDOW = 128
LIMIT_S = 1800.0
# Of log-probabilities, in their deviation. llama.cpp keeps keys and values in float16, and predictions in 16 bits.
ERROR = 0.003
# One process for all folders: to import what the script needs takes longer than to convert one.
CONVERT = """
import runpy, sys, traceback
script, *folders = sys.argv[1:]
for folder in folders:
    sys.argv = [script, folder, "--outtype", "f32", "--outfile", folder + ".gguf"]
    try:
        runpy.run_path(script, run_name="__main__")
    except BaseException:
        print(folder, file=sys.stderr)
        traceback.print_exc()
"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model's folder for each architecture, and with the file that the script made of it."""
    root = tmp_path_factory.mktemp("converted")
    texts = root / "byte-level", root / "pieces"
    sys.path.insert(0, str(GGUF_PACKAGE))
    try:
        write_byte_level(texts[0])
        write_pieces(texts[1])
    finally:
        sys.path.remove(str(GGUF_PACKAGE))
    models = [str(written(name, root / name, texts[name in OF_PIECES])) for name in ARCHITECTURES]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join((str(PROGRAMS), str(GGUF_PACKAGE)))}
    command = [sys.executable, "-c", CONVERT, str(SCRIPT), *models]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=LIMIT_S)
    print(done.stderr)
    return root


def write_byte_level(folder: Path) -> None:
    """Write GPT-2's tokenizer into a new folder."""
    from gguf import GGUFReader

    folder.mkdir()
    reader = GGUFReader(PROGRAMS / "models" / "ggml-vocab-gpt-2.gguf")
    source = load({name: field.contents() for name, field in reader.fields.items()}).read_source()
    backend = tokenizers.Tokenizer.from_buffer(source.file)
    backend.add_special_tokens(list(ADDED))
    backend.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": ADDED[0], "eos_token": ADDED[0]}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def write_pieces(folder: Path) -> None:
    """Write a tokenizer of sentencepiece, trained on the text that is predicted, into a new folder."""
    from sentencepiece import SentencePieceTrainer

    folder.mkdir()
    SentencePieceTrainer.train(
        input=str(FILE), model_prefix=str(folder / "tokenizer"), model_type="bpe", vocab_size=NUM_PIECES,
        byte_fallback=True, add_dummy_prefix=False, minloglevel=2,
    )  # fmt: skip


def written(architecture: str, folder: Path, text: Path) -> Path:
    """Write a tiny model with the tokenizer of the folder `text` into a new `folder`; return it."""
    fields = {"model_type": architecture.lower(), **GGUF_MODELS[architecture], **FIELDS.get(architecture, {})}
    vocab_size = NUM_PIECES if architecture in OF_PIECES else VOCAB_SIZE
    shutil.copytree(tiny(architecture, **fields, vocab_size=vocab_size), folder)
    if fields.get("tie_word_embeddings"):
        tensors = load_file(folder / "model.safetensors")
        tensors["model.embed_tokens.weight"] *= EMBEDDING
        save_file(tensors, folder / "model.safetensors")
    return shutil.copytree(text, folder, dirs_exist_ok=True)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_converted_model_gives_the_logits_of_its_folder_and_of_llama_cpp(
    architecture: str, folders: Path, tmp_path: Path
):
    folder, file, theirs = folders / architecture, folders / f"{architecture}.gguf", tmp_path / "logits"
    assert file.exists(), "the script did not convert it"
    predict(PROGRAMS / "llama-perplexity", file, theirs, 1, WINDOW, num_cores())
    window = next(iter(read_windows(theirs)))
    expected = ScoredModel({"model": str(folder), "dtype": "float32"}).logits(window.tokens).clone()
    found = ScoredModel({"model": str(file), "dtype": "float32"}).logits(window.tokens)
    assert torch.equal(found, expected)
    assert window.known_TV.float().mean() > 0.9, "else what is compared is next to nothing"
    ours_TV = log_softmax(found[window.first : -1], -1)
    differences = (ours_TV - window.logprobs_TV)[window.known_TV]
    error = float(differences.square().mean().sqrt() / ours_TV.std())
    print(f"{architecture}: relative error {error:.2g}")
    assert error < ERROR
