"""What is read of models of every format and family, and what is said of broken ones: equal to golden_models.json."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from app.checkpoint.inspection import inspect
from app.checkpoint.names import served_name
from app.config.settings import ModelConfig
from app.contract.errors import QuireError
from app.engine.build import build_engine
from app.models.file_source import FileSource
from app.models.kv_scales import read_kv_scales
from app.text.opened_model import OpenedModel
from tests.checkpoints import damaged_copy, tiny
from tests.gguf_writer import GGUF_MODELS, model_fields, stored_tensors, text_fields, tiny_gguf, write_gguf
from tests.quantized_models import EVERY_TYPE, random_gguf

GOLDEN = Path(__file__).with_name("golden_models.json")
TEXT = "the lazy dog, über <|im_end|> 12"


def copied(tmp: Path, name: str = "m", **fields: Any) -> Path:
    return damaged_copy(tiny(), tmp / name, **fields)


def with_scales(tmp: Path) -> Path:
    folder = copied(tmp)
    file = folder / "model.safetensors"
    scales = {
        f"model.layers.{layer}.self_attn.{kind}_scale": torch.tensor(0.3 + layer) for layer in (0, 1) for kind in "kv"
    }
    save_file(load_file(file) | scales, file)
    return folder


def with_file(tmp: Path, name: str, text: str) -> Path:
    folder = copied(tmp)
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    return folder


def without(tmp: Path, name: str) -> Path:
    folder = copied(tmp)
    (folder / name).unlink()
    return folder


def gguf_with(tmp: Path, architecture: str = "Qwen3", without: str = "", **fields: Any) -> Path:
    folder = tiny(architecture)
    named = {name.replace("__", "."): value for name, value in fields.items()}
    metadata = model_fields(folder, architecture) | text_fields(folder) | named
    tensors = stored_tensors(folder, architecture)
    tensors.pop(without, None)
    return write_gguf(tmp / "m.gguf", {name: value for name, value in metadata.items() if value is not None}, tensors)


def split(tmp: Path) -> Path:
    folder = tiny("Qwen3")
    tensors = list(stored_tensors(folder, "Qwen3", "Q8_0").items())
    metadata = model_fields(folder, "Qwen3") | text_fields(folder) | {"split.tensors.count": len(tensors)}
    for number in range(3):
        fields = (metadata if number == 0 else {}) | {"split.no": number, "split.count": 3}
        write_gguf(tmp / f"m-{number + 1:05}-of-00003.gguf", fields, dict(tensors[number::3]))
    return tmp / "m-00002-of-00003.gguf"


def cut(file: Path, size: int) -> Path:
    os.truncate(file, size)
    return file.parent if file.suffix == ".safetensors" else file


MODELS: dict[str, Callable[[Path], Path | str]] = {
    "guide": lambda tmp: "guide",
    **{f"folder {name}": lambda tmp, name=name: tiny(name, **GGUF_MODELS[name]) for name in GGUF_MODELS},
    **{f"folder {kind}": lambda tmp, kind=kind: tiny("Llama", torch_dtype=kind) for kind in ("bfloat16", "float16")},
    "folder in shards": lambda tmp: tiny("Qwen2", num_shards=3),
    "folder tied, with biases": lambda tmp: tiny("Llama", tie_word_embeddings=True, attention_bias=True),
    "folder with scales": with_scales,
    "folder that pools the last token": lambda tmp: with_file(
        tmp, "1_Pooling/config.json", '{"pooling_mode_lasttoken": true}'
    ),
    "folder with a template file": lambda tmp: with_file(tmp, "chat_template.jinja", "{{ messages[0].content }}!"),
    "folder without a template": lambda tmp: without(tmp, "tokenizer_config.json"),
    "folder that is chat only": lambda tmp: with_file(
        tmp, "generation_config.json", '{"chat_only": true, "temperature": 0.5, "eos_token_id": [1, 3]}'
    ),
    **{
        f"gguf {name}": lambda tmp, name=name: tiny_gguf(tmp / "m.gguf", name, **GGUF_MODELS[name])
        for name in GGUF_MODELS
    },
    **{
        f"gguf {kind}": lambda tmp, kind=kind: tiny_gguf(tmp / "m.gguf", "Llama", kind, attention_bias=True)
        for kind in ("F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")
    },
    "gguf every type": lambda tmp: random_gguf(tmp / "m.gguf", "Q8_0", EVERY_TYPE, "Mistral"),
    "gguf in parts": split,
    "gguf that pools the last token": lambda tmp: gguf_with(tmp, qwen3__pooling_type=3),
    "gguf with names and defaults": lambda tmp: gguf_with(
        tmp, general__name="A Model", general__basename="Base", general__size_label="7B", general__sampling__temp=0.5
    ),
    "gguf with two templates": lambda tmp: gguf_with(
        tmp, **{"tokenizer.chat_template.tool_use": "{{ tools }} {{ messages }}"}
    ),
    "gguf without a template": lambda tmp: gguf_with(tmp, tokenizer__chat_template=None),
}

BROKEN: dict[str, Callable[[Path], Path]] = {
    "no folder": lambda tmp: tmp / "nowhere",
    "empty folder": lambda tmp: tmp,
    "no config": lambda tmp: without(tmp, "config.json"),
    "no weights": lambda tmp: without(tmp, "model.safetensors"),
    "no tokenizer": lambda tmp: without(tmp, "tokenizer.json"),
    "config that is no JSON": lambda tmp: with_file(tmp, "config.json", "{"),
    "config that is a list": lambda tmp: with_file(tmp, "config.json", "[]"),
    "config as a pointer": lambda tmp: with_file(tmp, "config.json", "version https://git-lfs"),
    "another architecture": lambda tmp: copied(tmp, architectures=["Other"]),
    "another shape": lambda tmp: copied(tmp, intermediate_size=128),
    "another layer": lambda tmp: copied(tmp, num_hidden_layers=3),
    "weights that are cut": lambda tmp: cut(copied(tmp) / "model.safetensors", 1000),
    "weights that are short": lambda tmp: cut(copied(tmp) / "model.safetensors", 4),
    "tokenizer that is damaged": lambda tmp: with_file(tmp, "tokenizer.json", "{"),
    "tokenizer config that is damaged": lambda tmp: with_file(tmp, "tokenizer_config.json", "{"),
    "generation config that is damaged": lambda tmp: with_file(tmp, "generation_config.json", "{"),
    "wrong default": lambda tmp: with_file(tmp, "generation_config.json", '{"top_p": 7}'),
    "wrong end": lambda tmp: with_file(tmp, "generation_config.json", '{"eos_token_id": 999}'),
    "template that is damaged": lambda tmp: with_file(tmp, "chat_template.jinja", "{% if"),
    "template as a pointer": lambda tmp: with_file(tmp, "chat_template.jinja", "version https://git-lfs"),
    "template that is too long": lambda tmp: with_file(tmp, "chat_template.jinja", "x" * (2**20 + 1)),
    "damaged pooling": lambda tmp: with_file(tmp, "1_Pooling/config.json", "{"),
    "gguf that is cut": lambda tmp: cut(gguf_with(tmp), 3000),
    "gguf that is short": lambda tmp: cut(gguf_with(tmp), 10),
    "gguf of another architecture": lambda tmp: gguf_with(tmp, general__architecture="other"),
    "gguf with another shape": lambda tmp: gguf_with(tmp, qwen3__feed_forward_length=128),
    "gguf without a tensor": lambda tmp: gguf_with(tmp, without="blk.0.attn_q.weight"),
    "gguf without an embedding": lambda tmp: gguf_with(tmp, without="token_embd.weight"),
    "gguf with more tensors": lambda tmp: gguf_with(tmp, qwen3__block_count=1),
    "gguf with another pooling": lambda tmp: gguf_with(tmp, qwen3__pooling_type=4),
    "gguf that is no model": lambda tmp: gguf_with(tmp, general__type="adapter"),
    "gguf with another tokenizer": lambda tmp: gguf_with(tmp, tokenizer__ggml__model="bert"),
    "gguf with another rule": lambda tmp: gguf_with(tmp, tokenizer__ggml__pre="other"),
    "gguf with a damaged template": lambda tmp: gguf_with(tmp, tokenizer__chat_template="{% if"),
    "gguf with a number as template": lambda tmp: gguf_with(tmp, tokenizer__chat_template=7),
    "gguf without a part": lambda tmp: (split(tmp), (tmp / "m-00003-of-00003.gguf").unlink())[0],
}


def digest(value: bytes) -> str:
    return hashlib.blake2b(value, digest_size=8).hexdigest()


def facts(path: Path | str) -> dict[str, Any]:
    """What is read of a model."""
    settings = ModelConfig(model=str(path))
    files = inspect(settings)
    opened, spec = OpenedModel.of(settings, files), files.spec
    stored, text = files.stored_type, opened.text
    weights = hashlib.blake2b(digest_size=8)
    with FileSource(files) as source:
        for name, shape in spec.tensor_shapes().items():
            out = torch.empty(shape, dtype=torch.bfloat16)
            source.read(name, out)
            weights.update(out.view(torch.uint8).numpy().tobytes())
            if source.group_type(name):
                weights.update(source.read_groups(name).blocks.numpy().tobytes())
    scales = read_kv_scales(files)
    return {
        "spec": repr(spec),
        "named": [served_name(settings), list(files.names)],
        "format": files.summary,
        "quantization": files.quantization,
        "stored": {name: kind.name for name in spec.tensor_shapes() if (kind := stored(name)) is not None},
        "pooling": files.pooling.name,
        "scales": None if scales is None else [scales.keys_LG.tolist(), scales.values_LG.tolist()],
        "weights": weights.hexdigest(),
        "ids": text.tokenizer.encode(TEXT),
        "named tokens": dict(text.tokenizer.named_tokens),
        "eos": list(opened.eos_token_ids),
        "templates": None
        if text.chat_template is None
        else [
            digest(text.chat_template.tool_source.encode()),
            str(text.answers),
            text.is_chat_only,
            text.chat_template.render([{"role": "user", "content": "Hello"}]),
        ],
    }


def refusal(path: Path) -> str:
    """What is said of a broken model, by the command that loads it."""
    with pytest.raises(QuireError) as error:
        from app.config.settings import make_config

        build_engine(make_config({"model": str(path), "num_kv_blocks": 8}))
    return f"{type(error.value).__name__} {getattr(error.value, 'param', None)}: {error.value.message}"


def test_models_are_read_as_before(tmp_path: Path):
    golden = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    found: dict[str, Any] = {}
    for number, (name, make) in enumerate({**MODELS, **BROKEN}.items()):
        folder = tmp_path / f"{number:02}"
        folder.mkdir()
        path = make(folder)
        value = facts(path) if name in MODELS else refusal(Path(path))
        text = json.dumps(value).replace(str(folder), "FOLDER")
        text = re.sub(r"tensor blk\.1\.[\w.]+", "tensor blk.1", text)  # any of them
        found[name] = json.loads(re.sub(r"tiny-(\w+)-\w{8}", r"tiny-\1", text))
        shutil.rmtree(folder)
    if not golden:
        GOLDEN.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    assert {name: value for name, value in found.items() if value != golden.get(name)} == {}
