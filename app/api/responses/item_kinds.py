"""The items of a request's input as structs: the messages, calls and results of a conversation.

Clients send back the items of earlier answers as they are, so all that these have is accepted: `id`, `status`, `phase`,
annotations and the like are not read.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import msgspec

MAX_ITEMS = 8192  # of an input
MAX_CONVERSATION_BYTES = 4 * 2**20  # of the inputs of a conversation that is gone on from, as JSON: as of a body
Role = Literal["user", "assistant", "system", "developer"]


class _Tagged(msgspec.Struct, kw_only=True, tag_field="type"):
    """The items and parts, which have a `type`."""


class InputText(_Tagged, tag="input_text"):
    """A text."""

    text: str


class OutputText(_Tagged, tag="output_text"):
    """A text of an answer."""

    text: str


class PlainText(_Tagged, tag="text"):
    """A text, under the name that chats have for it."""

    text: str


class RefusalText(_Tagged, tag="refusal"):
    """Why a model refused."""

    refusal: str

    @property
    def text(self) -> str:
        """The text that the model said."""
        return self.refusal


class SummaryText(_Tagged, tag="summary_text"):
    """A part of a summary of reasoning."""

    text: str


class ReasoningText(_Tagged, tag="reasoning_text"):
    """A part of reasoning."""

    text: str


class InputImage(_Tagged, tag="input_image"):
    """An image in the result of a call."""


class InputFile(_Tagged, tag="input_file"):
    """A file in the result of a call."""


class InputAudio(_Tagged, tag="input_audio"):
    """A sound in the result of a call."""


MessagePart = InputText | OutputText | PlainText | RefusalText
ResultPart = MessagePart | InputImage | InputFile | InputAudio


class MessageItem(_Tagged, tag="message"):
    """A message."""

    role: Role
    content: str | list[MessagePart] | None = None


class ReasoningItem(_Tagged, tag="reasoning"):
    """The reasoning of an answer, as it is or as its summary."""

    content: list[ReasoningText | PlainText] | None = None
    summary: list[SummaryText] | None = None


class FunctionCallItem(_Tagged, tag="function_call"):
    """A call of a function; `arguments` is the JSON of an object, the object, or what a cut call has of it."""

    name: str
    arguments: str | dict[str, Any] | None = None
    call_id: str | None = None
    namespace: str | None = None


class CustomCallItem(_Tagged, tag="custom_tool_call"):
    """A call of a tool that takes a text."""

    name: str
    input: str = ""
    call_id: str | None = None
    namespace: str | None = None


class ToolSearchCallItem(_Tagged, tag="tool_search_call"):
    """A search for tools."""

    arguments: str | dict[str, Any] | None = None
    call_id: str | None = None


class LocalShellCallItem(_Tagged, tag="local_shell_call"):
    """A command of an earlier answer's shell."""

    action: Any = None
    call_id: str | None = None


class ShellCallItem(_Tagged, tag="shell_call"):
    """Commands of an earlier answer's shell."""

    action: Any = None
    call_id: str | None = None


class ApplyPatchCallItem(_Tagged, tag="apply_patch_call"):
    """A change of a file by an earlier answer."""

    operation: Any = None
    call_id: str | None = None


class FunctionResultItem(_Tagged, tag="function_call_output"):
    """The result of a call of a function."""

    output: str | list[ResultPart] | None = None
    call_id: str | None = None


class CustomResultItem(_Tagged, tag="custom_tool_call_output"):
    """The result of a call of a tool that takes a text."""

    output: str | list[ResultPart] | None = None
    call_id: str | None = None


class ToolSearchResultItem(_Tagged, tag="tool_search_output"):
    """The tools that a search has found."""

    tools: list[Any]
    call_id: str | None = None


class LocalShellResultItem(_Tagged, tag="local_shell_call_output"):
    """The output of a command."""

    output: Any = None
    call_id: str | None = None
    id: str | None = None


class ShellResultItem(_Tagged, tag="shell_call_output"):
    """The output of commands."""

    output: Any = None
    call_id: str | None = None


class ApplyPatchResultItem(_Tagged, tag="apply_patch_call_output"):
    """The outcome of a change."""

    output: Any = None
    status: str | None = None
    call_id: str | None = None


class AdditionalToolsItem(_Tagged, tag="additional_tools"):
    """Tools that may be called from here on."""

    tools: list[Any]


CallItem = (
    FunctionCallItem | CustomCallItem | ToolSearchCallItem | LocalShellCallItem | ShellCallItem | ApplyPatchCallItem
)
ResultItem = (
    FunctionResultItem
    | CustomResultItem
    | ToolSearchResultItem
    | LocalShellResultItem
    | ShellResultItem
    | ApplyPatchResultItem
)
InputItem = MessageItem | ReasoningItem | CallItem | ResultItem | AdditionalToolsItem
READ_FIELDS: dict[str, tuple[str, ...]] = {
    kind.__struct_config__.tag: ("type", *kind.__struct_fields__) for kind in get_args(InputItem)
}
"""The fields of each type of items that anything is made of."""
