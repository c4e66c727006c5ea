"""Chats as token ids: what is continued, how an answer begins, and too many characters."""

from __future__ import annotations

from typing import Any

import pytest

from app.config.settings import ModelConfig
from app.contract.errors import ContextLengthExceeded, InvalidValue
from app.text.answer.tool_use import NO_TOOLS
from app.text.entry.chat_prompt import ChatPrompt
from app.text.template.chat_template import ChatTemplate, RenderOptions
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
    for encode in (ChatPrompt.encode, ChatPrompt.text):
        with pytest.raises(ContextLengthExceeded, match="characters, more than fit"):
            encode(chat(long, HI, max_tokens=10))


def test_the_tokens_of_a_prompt_that_does_not_fit_are_counted():
    long = {"role": "user", "content": "One two. " * 300}
    num_tokens = len(chat(long, HI).encode().token_ids)
    assert chat(long, HI).count() == num_tokens
    for limit in (num_tokens - 1, 100, 10):
        assert chat(long, HI, max_tokens=limit).count() == num_tokens
    with pytest.raises(InvalidValue, match="surrogate"):
        chat(long, {"role": "user", "content": "\ud800"}, max_tokens=10).count()


def turns(count: int, length: int = 20) -> list[dict[str, Any]]:
    """A system message, and so many questions with answers of so many words."""
    words = " ".join(["word"] * length)
    asked = (
        [{"role": "user", "content": f"{n} {words}"}, {"role": "assistant", "content": words}] for n in range(count)
    )
    return [{"role": "system", "content": "Be brief."}, *(message for turn in asked for message in turn), HI]


def test_a_prompt_that_fits_is_as_it_was():
    prompt = chat(*turns(3))
    num_tokens = len(prompt.encode().token_ids)
    assert prompt.fitted(num_tokens).encode() == prompt.encode()
    assert prompt.fitted(num_tokens - 1).encode() != prompt.encode()


@pytest.mark.parametrize("most", [100, 300, 900])
def test_a_prompt_that_is_too_long_is_that_of_its_newest_turns(most: int):
    messages = turns(60)
    fitted = chat(*messages, max_tokens=1000).fitted(most)
    shorter = [chat(messages[0], *messages[first:]).encode() for first in range(1, len(messages), 2)]
    assert fitted.encode() in shorter
    assert most * 5 // 8 <= len(fitted.encode().token_ids) <= most, "a stride is at most a quarter, and a turn"


def test_what_must_be_kept_may_be_too_long():
    messages = turns(3)
    assert chat(*messages).fitted(5).encode() == chat(messages[0], messages[-1]).encode()
    long = {"role": "user", "content": "word " * 2000}
    assert len(chat(*messages, long).fitted(900).encode().token_ids) > 2000


def test_a_prompt_is_encoded_once(monkeypatch: pytest.MonkeyPatch):
    """Where a chat fits, as most do, whether it does costs nothing."""
    rendered: list[int] = []
    render = ChatTemplate.render

    def counting(self: ChatTemplate, messages: list[dict[str, object]], *args: Any, **options: Any) -> list[int]:
        rendered.append(len(messages))
        return render(self, messages, *args, **options)

    monkeypatch.setattr(ChatTemplate, "render", counting)
    prompt = chat(*turns(3)).fitted(900)
    assert prompt.encode() == prompt.encode()
    assert rendered == [8]
