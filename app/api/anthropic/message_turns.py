"""From the messages of the Messages API to those of a chat.

All blocks of an answer are one message of the assistant: its reasoning, its texts, its calls in their order. The
results in a message of the user come in front of its texts. A system message stays in its place. One text is passed as
a text and several as parts, so that both spellings of the same content become the same tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from app.api.anthropic.block_texts import document_text, result_text, search_text, without_billing_line
from app.api.anthropic.message_fields import (
    ContentBlock,
    CountTokensBody,
    DocumentBlock,
    ImageBlock,
    InputMessage,
    RedactedThinkingBlock,
    SearchResultBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from app.api.body.chat_fields import Message, RefusalPart, TextPart
from app.api.body.parse_chat import MAX_MESSAGES
from app.api.body.tool_messages import MAX_ID_CHARS, FunctionCall, ToolCall
from app.contract.errors import InvalidValue, UnsupportedParameter

_UNREAD = "Could not process image: this model reads text only."
"""The words by which clients know what to do about an image or a document."""


def chat_messages(
    body: CountTokensBody, definitions: Mapping[str, str], *, keeps_billing_line: bool = False
) -> list[Message]:
    """Return the messages of a chat that say the same; `definitions` are the JSON of tools by name. Any thread.

    Raises:
        InvalidValue, UnsupportedParameter: a message or a block is wrong; the error names it.
    """
    if not 1 <= len(body.messages) <= MAX_MESSAGES:
        raise InvalidValue(
            f"messages has {len(body.messages)} items; it must have 1 to {MAX_MESSAGES}.", param="messages"
        )
    return [*_system(body, keeps_billing_line), *_all_turns(body, definitions, keeps_billing_line)]


def is_continued(messages: Sequence[Message]) -> bool:
    """Return whether a chat ends with the beginning of the answer, which is to be continued. Any thread."""
    last = messages[-1] if messages else Message(role="")
    return last.role == "assistant" and not last.tool_calls and any(last.texts)


def _system(body: CountTokensBody, keeps_billing_line: bool) -> Iterator[Message]:
    """Yield the system message in front: its blocks are joined without anything between."""
    given = [body.system] if isinstance(body.system, str) else [block.text for block in body.system or ()]
    text = "".join(given if keeps_billing_line else map(without_billing_line, given))
    if text:
        yield Message(role="system", content=text)


def _all_turns(body: CountTokensBody, definitions: Mapping[str, str], keeps_billing_line: bool) -> Iterator[Message]:
    for index, message in enumerate(body.messages):
        path = f"messages[{index}].content"
        match message.role:
            case "user":
                yield from _of_user(path, message, definitions)
            case "assistant":
                yield _of_assistant(path, message)
            case "system":
                yield from _of_system(path, message, keeps_billing_line)


def _of_user(path: str, message: InputMessage, definitions: Mapping[str, str]) -> Iterator[Message]:
    """Yield the results in a message of the user, and then its texts."""
    if isinstance(message.content, str):
        yield Message(role="user", content=message.content)
        return
    if not message.content:
        raise InvalidValue(f"{path} is an empty list; it must be a text or a list of blocks.", param=path)
    texts: list[str] = []
    for number, block in enumerate(message.content):
        at = f"{path}[{number}]"
        match block:
            case TextBlock():
                texts.append(block.text)
            case SearchResultBlock():
                texts.append(search_text(block))
            case DocumentBlock() | ImageBlock():
                texts.append(_text_of(at, block))
            case ToolResultBlock():
                _check_id(f"{at}.tool_use_id", block.tool_use_id)
                text = result_text(block, definitions)
                yield Message(role="tool", content=text, tool_call_id=block.tool_use_id)
            case RedactedThinkingBlock():
                pass
            case _:
                raise _misplaced(at, block, message.role)
    if texts:
        yield Message(role="user", content=_content(texts))


def _of_assistant(path: str, message: InputMessage) -> Message:
    if isinstance(message.content, str):
        return Message(role="assistant", content=message.content)
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    for number, block in enumerate(message.content):
        at = f"{path}[{number}]"
        match block:
            case TextBlock():
                texts.append(block.text)
            case ThinkingBlock():
                thoughts.append(block.thinking)
            case ToolUseBlock():
                _check_id(f"{at}.id", block.id)
                calls.append(ToolCall(function=FunctionCall(name=block.name, arguments=block.input), id=block.id))
            case RedactedThinkingBlock():
                pass
            case _:
                raise _misplaced(at, block, message.role)
    reasoning = "\n".join(filter(None, thoughts))
    content = _content(texts) if texts else None
    return Message(role="assistant", content=content, tool_calls=calls or None, reasoning_content=reasoning or None)


def _of_system(path: str, message: InputMessage, keeps_billing_line: bool) -> Iterator[Message]:
    blocks = [TextBlock(text=message.content)] if isinstance(message.content, str) else message.content
    texts: list[str] = []
    for number, block in enumerate(blocks):
        if not isinstance(block, TextBlock):
            raise _misplaced(f"{path}[{number}]", block, message.role)
        texts.append(block.text if keeps_billing_line else without_billing_line(block.text))
    if found := [text for text in texts if text]:
        yield Message(role="system", content=_content(found))


def _content(texts: Sequence[str]) -> str | list[TextPart | RefusalPart]:
    return texts[0] if len(texts) == 1 else [TextPart(text=text) for text in texts]


def _text_of(path: str, block: DocumentBlock | ImageBlock) -> str:
    text = document_text(block) if isinstance(block, DocumentBlock) else None
    if text is None:
        raise UnsupportedParameter(f"{path}: {_UNREAD}", param=path)
    return text


def _check_id(path: str, call_id: str) -> None:
    if len(call_id) > MAX_ID_CHARS:
        raise InvalidValue(f"{path} has {len(call_id)} characters; at most {MAX_ID_CHARS} are allowed.", param=path)


def _misplaced(path: str, block: ContentBlock, role: str) -> InvalidValue:
    kind = block.__struct_config__.tag
    return InvalidValue(f"{path}.type is {kind!r}, which a message of the role {role!r} cannot have.", param=path)
