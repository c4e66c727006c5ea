"""Prompts as token ids, and the chats that become such."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from app.contract.errors import InvalidValue
from app.text.answer.reasoning_start import ReasoningStart, reasoning_start
from app.text.answer.tool_use import ToolUse
from app.text.entry.frontend import TextFrontend
from app.text.template.chat_template import ChatTemplate, RenderOptions


class EncodedPrompt(NamedTuple):
    """The token ids of a prompt, and how its answers begin their reasoning; None if they have none.

    `asks_for_thinking` is False where a chat's template was told to let the model not think.
    """

    token_ids: Sequence[int]
    start: ReasoningStart | None = None
    asks_for_thinking: bool = True


class ChatPrompt:
    """The messages of a chat, and how the model's template renders them. Any thread.

    Messages have the form that `ChatTemplate.render` takes. The prompt has at most `max_tokens` tokens.

    Attributes:
        tools: the tools that answers may call; the prompt has their definitions.

    Raises:
        InvalidValue: the last message is to be continued, and is not one of the assistant.
        ContextLengthExceeded: the messages have too many characters.
    """

    def __init__(
        self,
        text: TextFrontend,
        template: ChatTemplate,
        messages: list[dict[str, Any]],
        options: RenderOptions,
        tools: ToolUse,
        max_tokens: int,
    ) -> None:
        if options.continue_final:
            _check_continued(messages)
        text.tokenizer.check_num_chars(sum(len(_text_of(each)) for each in messages) + tools.num_chars, max_tokens)
        self.tools = tools
        self._text = text
        self._template = template
        self._messages = messages
        self._options = replace(options, tools=tools.definitions)
        self._max_tokens = max_tokens

    def encode(self) -> EncodedPrompt:
        """Return the token ids (see `ChatTemplate.render`), and how an answer begins its reasoning."""
        token_ids = self._template.render(self._messages, self._options, max_tokens=self._max_tokens)
        asks_for_thinking = self._template.findings.asks_for_reasoning(self._options.variables)
        start = reasoning_start(
            self._text.answers.reasoning,
            token_ids,
            self._text.tokenizer,
            _text_of(self._messages[-1]) if self._options.continue_final else None,
            is_asked_for=asks_for_thinking,
        )
        return EncodedPrompt(token_ids, start, asks_for_thinking)

    def text(self) -> str:
        """Return the prompt's text (see `ChatTemplate.render_text`)."""
        return self._template.render_text(self._messages, self._options, max_tokens=self._max_tokens)


def _check_continued(messages: Sequence[Mapping[str, object]]) -> None:
    role = messages[-1].get("role") if messages else None
    if role != "assistant":
        raise InvalidValue(
            f"The last message has the role {role!r:.100}; continue_final_message needs assistant.",
            param="continue_final_message",
        )


def _text_of(message: Mapping[str, Any]) -> str:
    """Return the text of a message, or of its parts."""
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "".join(part[part.get("type", "text")] for part in content)
