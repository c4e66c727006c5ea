"""What the metadata of a GGUF file says of the model's text."""

from pathlib import Path

import pytest

from app.checkpoint.gguf.gguf_metadata import MAX_TEMPLATES, TEMPLATE_KEY, GgufMetadata, chat_templates
from app.contract.errors import ModelRefused

FILE = Path("m.gguf")


def test_the_templates_are_the_default_and_the_one_for_tools():
    fields = {TEMPLATE_KEY: "a", f"{TEMPLATE_KEY}.tool_use": "b", f"{TEMPLATE_KEY}.rag": "c"}
    assert GgufMetadata(FILE, fields).templates == (FILE, "a", "b")
    assert GgufMetadata(FILE, {}).templates == (FILE, None, None)


def test_the_tokenizer_is_made_of_the_fields():
    metadata = GgufMetadata(FILE, {"general.name": "a"})
    assert metadata.make_tokenizer(lambda text: pytest.fail("there is no folder"), dict) == {"general.name": "a"}
    assert not metadata.is_chat_only


def test_chat_templates_are_found_by_name():
    metadata = {"tokenizer.chat_template": "a", "tokenizer.chat_template.tool_use": "b", "tokenizer.chat_templates": []}
    assert chat_templates(metadata) == {"default": "a", "tool_use": "b"}
    assert chat_templates({"tokenizer.chat_template.rag": "c"}) == {"rag": "c"}
    assert chat_templates({}) == {}


@pytest.mark.parametrize("value", [1, None, ["a"], b"a"])
def test_a_template_that_is_no_text_is_rejected(value):
    with pytest.raises(ModelRefused, match=r"tokenizer\.chat_template is not a text; .*--chat-template"):
        chat_templates({"tokenizer.chat_template": value})


def test_too_many_templates_are_rejected():
    with pytest.raises(ModelRefused, match="65 chat templates"):
        chat_templates({f"tokenizer.chat_template.{index}": "" for index in range(MAX_TEMPLATES + 1)})
