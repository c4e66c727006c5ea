"""The shipped folder: a Hugging Face checkpoint in bfloat16 that any loader of Llama models can read."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from training.guide.model import MAX_POSITIONS, ROPE_THETA, GuideModel, Shape
from training.guide.tokenizer import CHAT_TEMPLATE, SPECIAL_TOKENS, Markers

WEIGHTS = "model.safetensors"
ANSWER_TOKENS = 1024
"""More than a quarter of the context, which the page leaves an answer: two answers at once are longer. Nothing has to
follow one, since the prompt has the last question alone."""


def export(model: GuideModel, markers: Markers, corpus_digest: str, folder: Path) -> None:
    """Write everything but tokenizer.json, which is there already: it was trained into this folder."""
    weights = {name: weight.detach().to(torch.bfloat16).contiguous() for name, weight in model.state_dict().items()}
    save_file(weights, folder / WEIGHTS, {"format": "pt", "corpus": corpus_digest})
    _sort_metadata(folder / WEIGHTS)
    _write_json(folder / "config.json", _config(model.shape, markers))
    _write_json(folder / "tokenizer_config.json", _tokenizer_config())
    generation = {
        "do_sample": False, "temperature": 0.0, "eos_token_id": markers.end, "pad_token_id": markers.pad,
        "chat_only": True, "max_new_tokens": ANSWER_TOKENS,
    }  # fmt: skip
    _write_json(folder / "generation_config.json", generation)


def install(built: Path, folder: Path) -> None:
    """Move a complete build to where it is shipped, file by file: a reader never finds half a file."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in built.iterdir():
        aside = folder / f"{file.name}.new"
        shutil.copyfile(file, aside)
        aside.replace(folder / file.name)


def load_shipped(folder: Path) -> GuideModel:
    """Load the shipped weights into float32, to measure what is really shipped."""
    config = json.loads((folder / "config.json").read_text("utf-8"))
    shape = Shape(
        vocab_size=config["vocab_size"],
        hidden=config["hidden_size"],
        layers=config["num_hidden_layers"],
        heads=config["num_attention_heads"],
        kv_heads=config["num_key_value_heads"],
        head_dim=config["head_dim"],
        ffn=config["intermediate_size"],
        norm_eps=config["rms_norm_eps"],
    )
    model = GuideModel(shape)
    model.load_state_dict({name: weight.float() for name, weight in load_file(folder / WEIGHTS).items()})
    return model.eval()


def shipped_digest(folder: Path) -> str:
    """The digest of the corpus that the shipped weights were trained on."""
    with safe_open(folder / WEIGHTS, "pt") as file:
        return str(file.metadata()["corpus"])


def _sort_metadata(file: Path) -> None:
    """Bring the header's metadata, which safetensors writes in an order by chance, into the same one each time."""
    with file.open("r+b") as weights:
        (size,) = struct.unpack("<Q", weights.read(8))
        header = json.loads(weights.read(size))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        again = json.dumps(header, separators=(",", ":")).encode().ljust(size)
        if len(again) != size:
            raise RuntimeError(f"the header of {file} has {len(again)} bytes when it is written again, and had {size}")
        weights.seek(8)
        weights.write(again)


def _config(shape: Shape, markers: Markers) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "bfloat16",
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.ffn,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": MAX_POSITIONS,
        "rms_norm_eps": shape.norm_eps,
        "rope_theta": ROPE_THETA,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": None,
        "eos_token_id": markers.end,
        "pad_token_id": markers.pad,
    }


def _tokenizer_config() -> dict[str, object]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": SPECIAL_TOKENS[Markers._fields.index("end")],
        "pad_token": SPECIAL_TOKENS[Markers._fields.index("pad")],
        "model_max_length": MAX_POSITIONS,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }


def _write_json(file: Path, content: Mapping[str, object]) -> None:
    file.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", "utf-8")
