"""Chats as token ids: what is continued, how an answer begins, and too many characters."""

from __future__ import annotations

from typing import Any

import pytest

from app.config.settings import ModelConfig
from app.contract.errors import ContextLengthExceeded, InvalidValue
from app.text.answer.tool_use import NO_TOOLS
from app.text.entry.chat_prompt import ChatPrompt
from app.text.template.chat_template import RenderOptions
from tests.api.serving import load

HI = {"role": "user", "content": "Hi"}
BEGUN = {"role": "assistant", "content": [{"type": "text", "text": "<think>I"}, {"type": "refusal", "refusal": " do"}]}
TEXT = load(ModelConfig(reasoning_parser="think"))


def chat(*messages: dict[str, Any], max_tokens: int = 1000, **options: Any) -> ChatPrompt:
    """A chat of `guide`, whose answers may reason."""
    assert TEXT.chat_template is not None
    return ChatPrompt(TEXT, TEXT.chat_template, list(messages), RenderOptions(**options), NO_TOOLS, max_tokens)


def test_a_prompt_has_the_tokens_of_its_text():
    prompt = chat(HI)
    token_ids, start, _ = prompt.encode()
    assert TEXT.tokenizer.decode(token_ids, skip_special_tokens=False) == prompt.text()
    assert start is not None and start.is_possible and not start.is_inside


def test_a_message_that_is_continued_may_have_begun_to_reason():
    start = chat(HI, BEGUN, add_generation_prompt=False, continue_final=True).encode().start
    assert start is not None and start.is_inside


@pytest.mark.parametrize("messages", [[HI], []], ids=["of the user", "none"])
def test_only_the_assistants_last_message_is_continued(messages: list[dict[str, Any]]):
    with pytest.raises(InvalidValue, match="continue_final_message needs assistant") as caught:
        chat(*messages, continue_final=True)
    assert caught.value.param == "continue_final_message"


def test_messages_of_too_many_characters_are_not_rendered():
    long = {"role": "user", "content": "a" * 10 * TEXT.tokenizer.max_token_chars}
    chat(long, max_tokens=10)
    with pytest.raises(ContextLengthExceeded, match="characters, more than fit"):
        chat(long, HI, max_tokens=10)
