"""The text frontend: tokenizer and chat template of a folder, and placeholders for a config without them."""

import json
import shutil
from contextlib import nullcontext
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.checkpoint.gguf.gguf_files import GgufFiles
from app.checkpoint.names import resolve
from app.checkpoint.text_files import FolderText
from app.config.settings import REASONING_PARSERS, TOOL_PARSERS, ModelConfig, make_config
from app.contract.errors import ConfigurationError, InvalidValue, ModelRefused
from app.text.answer.reasoning import STYLES
from app.text.answer.tool_use import choose_tools
from app.text.calls.formats import FORMATS
from app.text.entry.frontend import MAX_PLACEHOLDERS, TextFrontend, load_tokenizer, placeholder_tokenizer
from app.text.template.chat_template import RenderOptions
from app.text.template.template_trial import TOOLS, with_calls
from tests.checkpoints import tiny
from tests.gguf_writer import tiny_gguf
from tests.text.templates import ONE_CALL
from tests.text.toys import write_folder

MESSAGES = [{"role": "user", "content": "hello"}]
PLACEHOLDER = placeholder_tokenizer(1000)


def test_the_frontend_has_the_tokenizer_and_the_template_of_the_folder(tmp_path):
    write_folder(tmp_path, chat_template="{{ messages[0].content }}!")
    text = TextFrontend.load(ModelConfig(), FolderText(tmp_path))
    assert text.tokenizer.eos_token_id == text.tokenizer.special_tokens["</s>"]
    assert text.chat_template is not None
    assert text.tokenizer.decode(text.chat_template.render(MESSAGES)) == "hello!"


def test_a_model_may_have_no_template(tmp_path):
    assert TextFrontend.load(ModelConfig(), FolderText(write_folder(tmp_path))).chat_template is None


def test_the_template_of_the_settings_overrides_the_folders(tmp_path):
    write_folder(tmp_path, chat_template="own")
    file = tmp_path / "given.jinja"
    file.write_text("given")
    text = TextFrontend.load(ModelConfig(chat_template=str(file)), FolderText(tmp_path))
    assert text.chat_template is not None
    assert text.tokenizer.decode(text.chat_template.render(MESSAGES)) == "given"
    with pytest.raises(ConfigurationError, match="nowhere"):
        TextFrontend.load(ModelConfig(chat_template=str(tmp_path / "nowhere")), FolderText(tmp_path))


def test_a_config_without_a_tokenizer_gets_a_placeholder(tmp_path):
    (tmp_path / "config.json").write_text('{"vocab_size": 300}')
    assert load_tokenizer(FolderText(tmp_path), "dummy").vocab_size == 300
    with pytest.raises(ModelRefused, match=r"tokenizer\.json"):
        load_tokenizer(FolderText(tmp_path), "auto")


def test_a_config_with_a_tokenizer_keeps_it(tmp_path):
    shutil.copy(resolve("guide") / "tokenizer.json", tmp_path)
    assert (
        load_tokenizer(FolderText(tmp_path), "dummy").vocab_size
        == load_tokenizer(FolderText(resolve("guide")), "auto").vocab_size
    )


@pytest.mark.parametrize("vocab_size", [None, 0, -1, "300", 1.5, MAX_PLACEHOLDERS + 1, [1] * 1000])
def test_an_invalid_vocabulary_size_is_rejected(tmp_path, vocab_size):
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": vocab_size}))
    with pytest.raises(ModelRefused, match=r"config\.json: vocab_size is .* an integer between 1 and") as caught:
        load_tokenizer(FolderText(tmp_path), "dummy")
    assert len(caught.value.message) < 300


def test_a_chat_only_model_gets_a_text_as_a_question():
    text = TextFrontend.load(ModelConfig(), FolderText(resolve("guide")))
    assert text.is_chat_only
    assert text.as_question("Quire is") == text.chat_template.render([{"role": "user", "content": "Quire is"}])


@pytest.mark.parametrize("missing", ["the flag", "the file", "the template"])
def test_any_other_model_gets_a_raw_text_unchanged(tmp_path, missing):
    shutil.copytree(resolve("guide"), tmp_path, dirs_exist_ok=True)
    if missing == "the flag":
        (tmp_path / "generation_config.json").write_text("{}")
    elif missing == "the file":
        (tmp_path / "generation_config.json").unlink()
    else:
        (tmp_path / "tokenizer_config.json").unlink()
    assert TextFrontend.load(ModelConfig(), FolderText(tmp_path)).as_question("Quire is") is None


@given(st.text(max_size=40))
def test_the_placeholder_encodes_a_text_as_its_bytes(text):
    token_ids = PLACEHOLDER.encode(text)
    assert len(token_ids) == len(text.encode())
    assert all(token_id < 256 for token_id in token_ids)
    assert PLACEHOLDER.decode(token_ids) == text


def test_ids_above_255_of_the_placeholder_decode_to_their_numbers():
    assert PLACEHOLDER.decode([256, 999]) == " 256 999"


@pytest.mark.parametrize("vocab_size", [1, 255, 256, 257])
def test_the_placeholder_has_as_many_tokens_as_the_model(vocab_size):
    assert placeholder_tokenizer(vocab_size).vocab_size == vocab_size


def test_tokenizer_template_and_named_tokens_of_a_gguf_file(tmp_path):
    metadata = GgufFiles.open(tiny_gguf(tmp_path / "m.gguf")).metadata
    text, folder = TextFrontend.load(ModelConfig(), metadata), TextFrontend.load(ModelConfig(), FolderText(tiny()))
    assert text.tokenizer.encode("the lazy dog, \u00fcber <|im_end|>") == folder.tokenizer.encode(
        "the lazy dog, \u00fcber <|im_end|>"
    )
    assert text.tokenizer.named_tokens == {"bos_token": "<s>", "eos_token": "</s>"}
    assert text.tokenizer.eos_token_id == folder.tokenizer.eos_token_id
    assert text.chat_template.render(MESSAGES) == folder.chat_template.render(MESSAGES)
    assert not text.is_chat_only


def test_a_template_of_a_gguf_file_that_cannot_be_used_is_rejected_by_the_file(tmp_path):
    metadata = GgufFiles.open(tiny_gguf(tmp_path / "m.gguf")).metadata
    metadata = replace(metadata, fields={**metadata.fields, "tokenizer.chat_template": "{% if"})
    with pytest.raises(ModelRefused, match=r"m\.gguf contains no usable chat template"):
        TextFrontend.load(ModelConfig(), metadata)


def test_the_settings_name_the_parsers():
    assert tuple(FORMATS) == TOOL_PARSERS
    assert tuple(STYLES) == REASONING_PARSERS


def test_the_settings_choose_the_parsers(tmp_path):
    folder = write_folder(tmp_path, chat_template="{{ tools }}<tool_call><think></think>")
    answers = TextFrontend.load(make_config({}).model, FolderText(folder)).answers
    assert (answers.calls.name, answers.reasoning.name) == ("hermes", "think")
    settings = make_config({"tool_parser": "mistral", "reasoning_parser": "none"}).model
    answers = TextFrontend.load(settings, FolderText(folder)).answers
    assert (answers.calls.name, answers.reasoning) == ("mistral", None)
    assert str(answers) == "calls of tools: mistral, reasoning: none"


def test_a_required_answer_of_a_template_that_takes_one_call_is_taken_as_history(tmp_path):
    (write_folder(tmp_path) / "chat_template.jinja").write_text(ONE_CALL)
    text = TextFrontend.load(ModelConfig(), FolderText(tmp_path))
    assert text.chat_template is not None and not text.answers.takes_several_calls
    grammar = choose_tools(list(TOOLS), "required", True, text.answers.calls).grammar(text.answers)
    assert grammar is not None and grammar.source.startswith("start: call\n")
    for count, is_taken in ((1, True), (2, False)):
        with nullcontext() if is_taken else pytest.raises(InvalidValue, match="only supports single tool-calls"):
            assert "sample text" in text.chat_template.render_text(with_calls(count), RenderOptions(tools=TOOLS))
