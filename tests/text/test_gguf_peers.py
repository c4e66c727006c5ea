"""Vocabularies and templates of real models, which come with the source of llama.cpp; they are not in the repository.

`QUIRE_LLAMA_CPP` is the folder of llama.cpp's source, with `models/ggml-vocab-*.gguf`, the texts and expected ids
beside them (`.inp`, `.out`) and `models/templates`; without it, these tests are skipped. The ids are from transformers,
but for those of qwen35, from llama.cpp: it does not compose characters as the tokenizer.json of Qwen 3.5 says (NFC).
"""

import os
import unicodedata
from pathlib import Path

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from app.contract.errors import InvalidValue, ModelRefused
from app.text.chat_template import ChatTemplate
from app.text.gguf_tokenizer import chat_templates, load
from tests.text.gguf_toys import byte_level

SOURCE = Path(os.environ.get("QUIRE_LLAMA_CPP", "nowhere")) / "models"
SUPPORTED = (
    "command-r", "deepseek-coder", "deepseek-llm", "falcon", "gpt-2", "llama-bpe", "llama-spm", "mpt", "phi-3", "qwen2",
    "qwen35", "refact", "starcoder",
)  # fmt: skip
REJECTED = ("aquila", "bert-bge", "gemma-4", "gpt-neox", "nomic-bert-moe")
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not SOURCE.is_dir(), reason="needs llama.cpp's source (QUIRE_LLAMA_CPP)"),
]
USER = {"role": "user", "content": " What is a token?\n"}
ANSWER = {"role": "assistant", "content": "A piece of text."}
SYSTEM = {"role": "system", "content": "Be brief."}
TOOL = {"role": "tool", "content": "12", "name": "count"}
CHATS = ([USER], [SYSTEM, USER], [USER, ANSWER, USER], [SYSTEM, USER, ANSWER, USER], [USER, ANSWER], [USER, USER],
         [USER, ANSWER, TOOL], [SYSTEM], [{"role": "user", "content": "<think>{{ x }}</think> é"}])  # fmt: skip


def read(name: str) -> dict[str, object]:
    """The metadata of a vocabulary file."""
    from gguf import GGUFReader

    reader = GGUFReader(SOURCE / f"ggml-vocab-{name}.gguf")
    return {key: field.contents() for key, field in reader.fields.items()}


@pytest.mark.parametrize("name", SUPPORTED)
def test_ids_are_those_of_transformers(name):
    tokenizer = load(read(name))
    cases = SOURCE / f"ggml-vocab-{name}.gguf.inp"
    texts = cases.read_bytes().decode().split("\n__ggml_vocab_test__\n")
    lines = cases.with_suffix(".out").read_bytes().decode().split("\n")
    expected = {text: list(map(int, line.split())) for text, line in zip(texts, lines, strict=False)}
    assert len(expected) >= 45
    ids = {text: tokenizer.encode(text, add_special_tokens=False) for text in expected}
    differing = [text for text in expected if ids[text] != expected[text]]
    assert len(differing) == (3 if name == "qwen35" else 0)
    for text in differing:
        assert ids[text] == ids.get(composed := unicodedata.normalize("NFC", text), tokenizer.encode(composed))
        assert composed != text
    for text in set(expected) - set(differing):
        assert tokenizer.decode(ids[text]) == text


@pytest.mark.parametrize("name", REJECTED)
def test_other_kinds_are_rejected(name):
    with pytest.raises(ModelRefused, match=r"tokenizer\.ggml\.(model|pre)"):
        load(read(name))


def test_templates_have_names():
    assert set(chat_templates(read("command-r"))) == {"default", "tool_use", "rag"}


def test_templates_render_as_in_transformers():
    tokenizer = load(byte_level())
    num_same = num_rejected = 0
    for file in sorted((SOURCE / "templates").glob("*.jinja")):
        source = file.read_text(encoding="utf-8")
        template = ChatTemplate(source, tokenizer)
        for chat in CHATS:
            for options in (
                {"add_generation_prompt": True},
                {},
                {"add_generation_prompt": True, "enable_thinking": False},
            ):
                try:
                    theirs = render_jinja_template([chat], chat_template=source, **options, **tokenizer.named_tokens)[
                        0
                    ][0]
                except Exception:
                    theirs = None
                try:
                    ours = template._render(chat, **{"add_generation_prompt": False, **options})
                except InvalidValue:
                    ours = None
                assert ours == theirs, (file.name, chat, options)
                num_same += ours is not None
                num_rejected += ours is None
    print(f"\n{num_same} prompts are the same, {num_rejected} are rejected by both")
    assert num_same > 1000
