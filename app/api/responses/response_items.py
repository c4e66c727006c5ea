"""From the items of a request's input to the messages of a chat.

All that the assistant said and called up to the next other item is one message, so that a text behind a call does not
separate the call from its result. Ids of items are not read, so they cannot change a prompt.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, get_args

import msgspec
import orjson

from app.api.body.chat_fields import Message, RefusalPart, TextPart
from app.api.body.invalid_field import invalid_field
from app.api.body.tool_messages import MAX_ID_CHARS, FunctionCall, ToolCall
from app.api.responses.item_kinds import (
    MAX_ITEMS,
    AdditionalToolsItem,
    ApplyPatchCallItem,
    ApplyPatchResultItem,
    CallItem,
    CustomCallItem,
    FunctionCallItem,
    InputAudio,
    InputFile,
    InputImage,
    InputItem,
    LocalShellCallItem,
    LocalShellResultItem,
    MessageItem,
    MessagePart,
    ReasoningItem,
    ResultItem,
    ResultPart,
    ShellCallItem,
    ShellResultItem,
    ToolSearchCallItem,
    ToolSearchResultItem,
)
from app.api.responses.response_fields import ResponsesBody
from app.api.responses.response_tools import TOOL_SEARCH, RequestTools
from app.contract.errors import InvalidValue, NotFound, UnsupportedParameter
from app.text.calls.tools import definitions_text, to_json

SEPARATOR = "\n\n"
"""What stands between the texts of several reasoning items of one turn."""
_LEFT_OUT = (
    "web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call", "configuration_update",
    "mcp_", "computer_", "program",
)  # fmt: skip
"""The beginnings of the types of items that say nothing to a model that is not OpenAI's."""
_NOTHING = {"type": "reasoning"}


def _tags(union: Any) -> frozenset[str]:
    return frozenset(kind.__struct_config__.tag for kind in get_args(union))


_KINDS = _tags(InputItem)
_PARTS = {"content": _tags(MessagePart), "output": _tags(ResultPart)}


class ReadItems(NamedTuple):
    """The items of an input, and the paths of those that are left out."""

    items: list[InputItem]
    left_out: tuple[str, ...] = ()


def read_items(given: object) -> ReadItems:
    """Return an input, a text or a list of items as they come from JSON, as checked items. Any thread.

    An item that is left out is one of reasoning without a text, which says nothing.

    Raises:
        InvalidValue, UnsupportedParameter: an item is wrong; the path names it.
        NotFound: an item refers to one that is not kept.
    """
    if isinstance(given, str):
        return ReadItems([MessageItem(role="user", content=given)])
    if not isinstance(given, list):
        raise InvalidValue("input must be a text or a list of items.", param="input")
    if len(given) > MAX_ITEMS:
        raise InvalidValue(f"input has {len(given)} items; at most {MAX_ITEMS} are allowed.", param="input")
    typed = [_typed(f"input[{index}]", item) for index, item in enumerate(given)]
    left_out = tuple(f"input[{index}]" for index, item in enumerate(typed) if item is _NOTHING)
    fields: dict[str, object] = {"input": typed}
    try:
        body = msgspec.convert(fields, ResponsesBody)
    except msgspec.ValidationError as error:
        raise invalid_field(str(error), fields, ResponsesBody) from None
    assert isinstance(body.input, list)
    return ReadItems(body.input, left_out)


def as_messages(items: Sequence[InputItem], tools: RequestTools, num_before: int = 0) -> list[Message]:
    """Return the messages of a conversation; tools that its items bring are added to `tools`. Any thread.

    The first `num_before` items are those of earlier responses, and have no path.

    Raises:
        InvalidValue, UnsupportedParameter: an item is wrong; the path names it.
    """
    conversation = _Conversation(tools)
    for index, item in enumerate(items):
        conversation.add(f"input[{index - num_before}]", item)
    return conversation.messages()


class _Conversation:
    """Makes messages of items; what the assistant said since the last other item is collected."""

    def __init__(self, tools: RequestTools) -> None:
        self._tools = tools
        self._messages: list[Message] = []
        self._reasoning: list[str] = []
        self._texts: list[str] | None = None
        self._calls: list[ToolCall] = []

    def messages(self) -> list[Message]:
        """Return the messages of all items so far."""
        self._end_turn()
        return self._messages

    def add(self, path: str, item: InputItem) -> None:
        """Add an item, which is at `path`."""
        if isinstance(item, MessageItem) and item.role == "assistant":
            self._texts = (self._texts or []) + _texts_of(item.content)
        elif isinstance(item, ReasoningItem):
            self._reasoning += _reasoning_of(item)
        elif isinstance(item, CallItem):
            _check_id(path, item.call_id)
            self._calls.append(ToolCall(function=self._function_of(item), id=item.call_id))
        else:
            self._end_turn()
            message = self._other(path, item)
            if message is not None:
                self._messages.append(message)

    def _end_turn(self) -> None:
        """Make one message of what the assistant said, if it said anything."""
        if self._texts is not None or self._calls or self._reasoning:
            self._messages.append(
                Message(
                    role="assistant",
                    content=None if self._texts is None else _content(self._texts),
                    tool_calls=self._calls or None,
                    reasoning_content=SEPARATOR.join(self._reasoning) or None,
                )
            )
        self._reasoning, self._texts, self._calls = [], None, []

    def _other(self, path: str, item: MessageItem | ResultItem | AdditionalToolsItem) -> Message | None:
        if isinstance(item, MessageItem):
            if item.content in (None, []):
                what = "missing" if item.content is None else "an empty list"
                raise InvalidValue(
                    f"{path}.content is {what}; it must be a text or a list of text parts.", param=f"{path}.content"
                )
            return Message(role=item.role, content=_content(_texts_of(item.content)))
        if isinstance(item, AdditionalToolsItem):
            found = self._tools.add_found(f"{path}.tools", item.tools)
            return Message(role="system", content=definitions_text(found)) if found else None
        call_id = item.call_id
        if isinstance(item, LocalShellResultItem):
            call_id = call_id or item.id
        _check_id(path, call_id)
        return Message(role="tool", content=_content(list(self._result_of(path, item))), tool_call_id=call_id)

    def _function_of(self, item: CallItem) -> FunctionCall:
        """Return the name and the arguments that the prompt has for a call."""
        arguments: Any
        if isinstance(item, FunctionCallItem | CustomCallItem):
            name = self._tools.name_in_prompt(item.name, item.namespace)
            arguments = item.arguments if isinstance(item, FunctionCallItem) else {"input": item.input}
        elif isinstance(item, ToolSearchCallItem):
            name, arguments = TOOL_SEARCH, item.arguments
        elif isinstance(item, LocalShellCallItem):
            name, arguments = "local_shell", item.action
        elif isinstance(item, ShellCallItem):
            name, arguments = "shell", item.action
        else:
            assert isinstance(item, ApplyPatchCallItem)
            name, arguments = "apply_patch", item.operation
        return FunctionCall(name=name, arguments=arguments if isinstance(arguments, dict | str) else None)

    def _result_of(self, path: str, item: ResultItem) -> Iterator[str]:
        """Yield the texts of the result of a call."""
        if isinstance(item, ToolSearchResultItem):
            yield to_json(self._tools.add_found(f"{path}.tools", item.tools))
        elif isinstance(item, LocalShellResultItem | ShellResultItem):
            yield item.output if isinstance(item.output, str) else orjson.dumps(item.output or []).decode()
        elif isinstance(item, ApplyPatchResultItem):
            yield item.output if isinstance(item.output, str) else item.status or ""
        else:
            yield from _texts_of(item.output)


def _typed(path: str, item: object) -> object:
    """Return an item with its type, `_NOTHING` for one that is left out; reject types that cannot be read."""
    if not isinstance(item, dict):
        return item
    kind = item.get("type")
    if kind is None and "role" in item:
        kind, item = "message", {**item, "type": "message"}
    if kind == "item_reference" or (kind is None and "id" in item):
        raise NotFound(
            f"{path} refers to the item {str(item.get('id'))[:100]!r}, which is not kept here; send the item itself.",
            param=f"{path}.id",
        )
    if kind is None:
        raise InvalidValue(f"{path}.type is missing; send it, or the role of a message.", param=f"{path}.type")
    if isinstance(kind, str) and kind not in _KINDS:
        if kind.startswith(_LEFT_OUT):
            return _NOTHING
        raise UnsupportedParameter(
            f"{path}.type is {kind[:100]!r}, which is not supported; leave the item out.", param=f"{path}.type"
        )
    if kind != "reasoning":
        for name, known in _PARTS.items():
            _check_parts(f"{path}.{name}", item.get(name), known)
    return item


def _check_parts(path: str, parts: object, known: frozenset[str]) -> None:
    """Reject parts of other types than `known`; msgspec checks the rest of them."""
    for index, part in enumerate(parts) if isinstance(parts, list) else ():
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(kind, str) and kind not in known:
            path = f"{path}[{index}].type"
            raise UnsupportedParameter(f"{path} is {kind[:100]!r}; only text is supported.", param=path)


def _texts_of(content: str | Sequence[ResultPart] | None) -> list[str]:
    """Return the texts of a content; an image or the like in a result is a word about it, as its client repeats it."""
    if content is None:
        return []
    if isinstance(content, str):
        return [content]
    return [_LEFT_OUT_PARTS.get(type(part)) or _text_of(part) for part in content]


def _text_of(part: ResultPart) -> str:
    assert not isinstance(part, InputImage | InputFile | InputAudio)
    return part.text


_LEFT_OUT_PARTS: dict[type, str] = {
    InputImage: "[image left out: this model reads text]",
    InputFile: "[file left out: this model reads text]",
    InputAudio: "[sound left out: this model reads text]",
}


def _content(texts: list[str]) -> str | list[TextPart | RefusalPart]:
    """Return texts as the content of a message: one as it is, as it is the same in either spelling."""
    if len(texts) > 1:
        return [TextPart(text=text) for text in texts]
    return texts[0] if texts else ""


def _reasoning_of(item: ReasoningItem) -> list[str]:
    """Return the texts of reasoning: as it was, else its summary."""
    for parts in (item.content, item.summary):
        if texts := [part.text for part in parts or () if part.text]:
            return texts
    return []


def _check_id(path: str, call_id: str | None) -> None:
    if call_id is not None and len(call_id) > MAX_ID_CHARS:
        raise InvalidValue(
            f"{path}.call_id has {len(call_id)} characters; at most {MAX_ID_CHARS} are allowed.",
            param=f"{path}.call_id",
        )
