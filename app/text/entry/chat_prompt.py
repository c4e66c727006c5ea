"""Prompts as token ids, and the chats that become such."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from app.contract.errors import ContextLengthExceeded, InvalidValue
from app.runtime.lazy_property import lazy_property
from app.text.answer.reasoning_start import ReasoningStart, reasoning_start
from app.text.answer.tool_use import ToolUse
from app.text.entry.frontend import TextFrontend
from app.text.entry.oldest_turns import without_oldest
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
        self.tools = tools
        self._text = text
        self._template = template
        self._messages = messages
        self._options = replace(options, tools=tools.definitions)
        self._max_tokens = max_tokens

    def encode(self) -> EncodedPrompt:
        """Return the token ids (see `ChatTemplate.render`), and how an answer begins its reasoning.

        Raises:
            InvalidValue, ContextLengthExceeded: see `ChatTemplate.render`; messages of too many characters are not
                rendered.
        """
        return self._encoded

    def count(self) -> int:
        """Return the number of the prompt's tokens, however many (see `Tokenizer.count_parts`).

        Raises:
            InvalidValue: see `ChatTemplate.render`.
        """
        try:
            return len(self.encode().token_ids)
        except ContextLengthExceeded:  # which says at least how many
            return self._template.count(self._messages, self._options)

    def text(self) -> str:
        """Return the prompt's text (see `ChatTemplate.render_text`), and raise the same errors as `encode`."""
        self._check_num_chars()
        return self._template.render_text(self._messages, self._options, max_tokens=self._max_tokens)

    def fitted(self, max_tokens: int) -> ChatPrompt:
        """Return the prompt, if it has more than `max_tokens` tokens without its oldest turns (see `without_oldest`).

        Nothing is left out of the tools. What must be kept may have more tokens.

        Raises:
            InvalidValue: the template rejects or cannot render the messages.
        """
        prompts: dict[int, ChatPrompt] = {}

        def fits(messages: list[dict[str, Any]]) -> bool:
            prompts[len(messages)] = prompt = self._with(messages)
            try:
                return len(prompt.encode().token_ids) <= max_tokens
            except ContextLengthExceeded:
                return False

        return prompts[len(without_oldest(self._messages, max_tokens, fits))]

    @lazy_property
    def _encoded(self) -> EncodedPrompt:
        self._check_num_chars()
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

    def _check_num_chars(self) -> None:
        num_chars = sum(len(_text_of(each)) for each in self._messages) + self.tools.num_chars
        self._text.tokenizer.check_num_chars(num_chars, self._max_tokens)

    def _with(self, messages: list[dict[str, Any]]) -> ChatPrompt:
        return ChatPrompt(self._text, self._template, messages, self._options, self.tools, self._max_tokens)


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
