"""Vocabularies and templates of real models, which come with the source of llama.cpp; they are not in the repository.

`QUIRE_LLAMA_CPP` is the folder of llama.cpp's source, with `models/ggml-vocab-*.gguf`, the texts and expected ids
beside them (`.inp`, `.out`) and `models/templates`; without it, these tests are skipped. The ids are from transformers,
but for those of qwen35, from llama.cpp: it does not compose characters as the tokenizer.json of Qwen 3.5 says (NFC).

15 files have texts and ids. 13 are tested; bert-bge and gemma-4 are rejected by their kind of tokenizer, `bert` (word
pieces, of models that generate nothing) and `gemma4`, as their architectures are.
"""

import os
import unicodedata
from collections import Counter
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from app.checkpoint.gguf.gguf_metadata import chat_templates
from app.contract.errors import InvalidValue, ModelRefused
from app.contract.grammar import Grammar, GrammarKind
from app.text.calls.call_grammar import CallGrammar
from app.text.calls.formats import FORMATS
from app.text.grammar.compile import compile_grammar
from app.text.grammar.vocabulary import GrammarVocabulary
from app.text.template.chat_template import ChatTemplate, RenderOptions
from app.text.tokens.gguf.gguf_tokenizer import load
from tests.text.gguf_toys import byte_level

SOURCE = Path(os.environ.get("QUIRE_LLAMA_CPP", "nowhere")) / "models"
SUPPORTED = (
    "command-r", "deepseek-coder", "deepseek-llm", "falcon", "gpt-2", "llama-bpe", "llama-spm", "mpt", "phi-3", "qwen2",
    "qwen35", "refact", "starcoder",
)  # fmt: skip
REJECTED_PAIRS = {"bert-bge": r"\.model is 'bert'", "gemma-4": r"\.model is 'gemma4'"}
REJECTED = {**REJECTED_PAIRS, **dict.fromkeys(("aquila", "gpt-neox", "nomic-bert-moe"), r"\.(model|pre) ")}
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

OPTIONS: tuple[dict[str, bool], ...] = (
    {"add_generation_prompt": True}, {"add_generation_prompt": False},
    {"add_generation_prompt": True, "enable_thinking": False},
)  # fmt: skip


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
        composed = unicodedata.normalize("NFC", text)
        assert composed != text
        assert ids[text] == tokenizer.encode(composed, add_special_tokens=False)
    for text in set(expected) - set(differing):
        assert tokenizer.decode(ids[text]) == text


def test_each_pair_of_texts_and_ids_is_tested_or_rejected_by_name():
    names = {file.name.removeprefix("ggml-vocab-").removesuffix(".gguf.inp") for file in SOURCE.glob("*.inp")}
    assert names == {*SUPPORTED, *REJECTED_PAIRS}
    assert len(names) == 15


@pytest.mark.parametrize("way", ["required", "strict"])
def test_grammars_allow_the_call_tokens_of_qwen(way):
    """They are added tokens that are not special, which the library would never allow.

    The vocabulary is that of Qwen2, with the names that two of its ids have in Qwen2.5 and Qwen3.
    """
    metadata = read("qwen2")
    tokens = list(metadata["tokenizer.ggml.tokens"])
    tokens[151657:151659] = ["<tool_call>", "</tool_call>"]
    tokenizer = load({**metadata, "tokenizer.ggml.tokens": tokens})
    mark = tokenizer.token_id("<tool_call>")
    assert mark == 151657 and mark not in tokenizer.special_tokens.values()
    tool = {"function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}}
    calls = CallGrammar(FORMATS["hermes"].syntax, [tool], tokenizer.special_tokens)
    source = calls.required(is_parallel=False) if way == "required" else calls.optional(is_parallel=False)
    vocabulary = GrammarVocabulary(tokenizer, tokenizer.vocab_size, [tokenizer.eos_token_id])
    matcher = compile_grammar(Grammar(GrammarKind.CALLS, source), vocabulary)
    assert int.from_bytes(matcher.compute_bitmask(), "little") >> mark & 1
    text = '<tool_call>\n{"name": "f", "arguments": {"a": "</tool_call>"}}\n</tool_call>'
    token_ids = tokenizer.encode(text, add_special_tokens=False)
    assert token_ids[0] == mark
    assert matcher.try_consume_tokens(token_ids) == len(token_ids) and matcher.is_accepting()


@pytest.mark.parametrize("name", REJECTED)
def test_other_kinds_are_rejected(name):
    with pytest.raises(ModelRefused, match=rf"tokenizer\.ggml{REJECTED[name]}"):
        load(read(name))


def test_templates_have_names():
    assert set(chat_templates(read("command-r"))) == {"default", "tool_use", "rag"}


def rendered(render: Callable[[], str], error: type[Exception]) -> str | None:
    """A prompt, or None if the template rejects the chat."""
    try:
        return render()
    except error:
        return None


def test_templates_render_as_in_transformers():
    tokenizer, counts, differing = load(byte_level()), Counter[str](), set()
    for file in sorted((SOURCE / "templates").glob("*.jinja")):
        source = file.read_text(encoding="utf-8")
        template = ChatTemplate(source, tokenizer)
        # Results of tools are put into plain messages for templates that know none, and would leave them out.
        chats = [chat for chat in CHATS if not (template._is_generic and chat[-1]["role"] == "tool")]
        for chat, options in product(chats, OPTIONS):
            values = {**tokenizer.named_tokens, **options}
            theirs = rendered(lambda: render_jinja_template([chat], chat_template=source, **values)[0][0], Exception)  # noqa: B023
            variables = {name: value for name, value in options.items() if name != "add_generation_prompt"}
            given = RenderOptions(options["add_generation_prompt"], variables=variables)
            ours = rendered(lambda: template.render_text(chat, given), InvalidValue)  # noqa: B023
            counts["rejected by both" if ours is theirs is None else "same" if ours == theirs else "different"] += 1
            if ours != theirs:
                differing.add(file.name)
    print(f"\n{dict(counts)}")
    assert not differing
    assert counts["same"] >= 1700
