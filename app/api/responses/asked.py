"""The part of a request for a response that its answer repeats or is shaped by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, Self

import msgspec

ToolKind = Literal["function", "custom", "tool_search"]


class CalledTool(NamedTuple):
    """A tool as the client knows it; `namespace` is the one that its name belongs to, if any."""

    kind: ToolKind
    name: str
    namespace: str | None = None


@dataclass(frozen=True, slots=True)
class CalledTools:
    """The tools of a request by their names in the prompt. Any thread."""

    tools: Mapping[str, CalledTool] = field(default_factory=dict)

    def of(self, name_in_prompt: str) -> CalledTool:
        """Return the tool that the model calls so; a name that the request does not have is a function's."""
        return self.tools.get(name_in_prompt) or CalledTool("function", name_in_prompt)


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedReasoning:
    """The client's `reasoning`, as the response repeats it."""

    effort: str | None = None
    summary: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedResponse:
    """The part of a request for a response that its answer repeats or depends on. Any thread.

    Attributes:
        response_id: "resp_" and 32 hexadecimal digits.
        created_at: seconds of the Unix time.
        instructions: the client's text, or the items it sent as such.
        has_summary: reasoning goes out as its summary, not as raw text.
        text: `format`, with its `type`, and `verbosity`, if it was sent; of a kept response, JSON (see `compact`).
        short_text: the same without its schema and description.
        tool_choice: what the client sent, else "auto".
        tools: what the client sent, with the tools that are left out, and all fields of functions; of a kept response,
            JSON.
        temperature, top_p, presence_penalty, frequency_penalty: what was resolved, of the request or the model's
            defaults.
        has_logprobs: the texts of the answer have log-probabilities, with `top_logprobs` others for each token.
        max_output_tokens: the client's limit, not what was left of it.
        store: the response is kept, or would be if there is memory for it.
        background: it goes on when its client is gone.
        has_timings: the response has the times of its request.
        called: the tools that the model may call, by their names in the prompt.
        own_items: the JSON of the items of the request's own input, if the response is kept.
    """

    response_id: str
    created_at: int
    model: str
    instructions: object = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    previous_response_id: str | None = None
    reasoning: AskedReasoning = AskedReasoning()
    has_summary: bool = False
    text: object = field(default_factory=lambda: {"format": {"type": "text"}})
    short_text: object = field(default_factory=lambda: {"format": {"type": "text"}})
    tool_choice: object = "auto"
    tools: object = ()
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    top_logprobs: int = 0
    has_logprobs: bool = False
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    parallel_tool_calls: bool = True
    truncation: Literal["auto", "disabled"] = "disabled"
    store: bool = False
    background: bool = False
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    has_timings: bool = False
    called: CalledTools = CalledTools()
    own_items: bytes = b"[]"

    def compact(self) -> Self:
        """Return it with JSON in place of objects that can be many: these take up to 30 times its memory."""
        tools, text = (msgspec.Raw(msgspec.json.encode(each)) for each in (self.tools, self.text))
        return replace(self, tools=tools, text=text)

    def as_before(self, response_id: str, created_at: int, model: str) -> Self:
        """Return the part of a request that was read again, as it was when its response was begun."""
        return replace(self, response_id=response_id, created_at=created_at, model=model)
