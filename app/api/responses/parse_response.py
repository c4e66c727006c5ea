"""From the body of `POST /v1/responses` to the request for its answer: that of the chat which the body means."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import msgspec

from app.api.body.chat_fields import Message
from app.api.body.json_body import parse_object
from app.api.body.parse_chat import Translated, chat_prompt, chat_request, fitted_prompt
from app.api.body.parse_request import RequestContext, renaming
from app.api.body.schemas import ChatBody, StreamOptions, check_values
from app.api.responses.asked import AskedReasoning, AskedResponse
from app.api.responses.response_fields import (
    AS_ON_CHAT,
    LOGPROBS,
    NAMES_ON_CHAT,
    AnyObject,
    ResponsesBody,
    SchemaText,
)
from app.api.responses.response_items import ReadItems, as_messages, read_items
from app.api.responses.response_tools import RequestTools, repeated_tools
from app.api.wire.api_request import ApiRequest
from app.contract.errors import InvalidValue, PreviousResponseNotFound, UnsupportedParameter
from app.contract.grammar import StructuredOutputs
from app.contract.sampling_params import MAX_TOKENS
from app.text.answer.answer_demand import Requested
from app.text.answer.tool_use import ToolUse
from app.text.grammar.grammar_sources import ANY_OBJECT


class KeptResponses(Protocol):
    """The responses that a request may go on from. Any thread."""

    def num_bytes_of(self, response_id: str) -> int:
        """Return about the bytes of what `items_of` returns, which raises the same errors."""

    def items_of(self, response_id: str) -> Sequence[object]:
        """Return the items of a response, as JSON has them: all that its model was sent, and its output.

        Raises:
            PreviousResponseNotFound: there is no such response.
        """

    def begin(self, response_id: str, items: Sequence[object]) -> None:
        """Note what the model is sent for a new response, as `items_of` returns it later, with the output."""


class NothingKept:
    """Implements `KeptResponses` for a server that keeps none."""

    def num_bytes_of(self, response_id: str) -> int:
        return 0

    def items_of(self, response_id: str) -> Sequence[object]:
        raise PreviousResponseNotFound(
            f"Previous response with id {response_id[:100]!r} not found: nothing is kept here; send the whole "
            "conversation as input.",
            param="previous_response_id",
        )

    def begin(self, response_id: str, items: Sequence[object]) -> None:
        pass


NOTHING_KEPT = NothingKept()


def parse_response(
    request: RequestContext,
    kept: KeptResponses = NOTHING_KEPT,
    *,
    is_prompt_only: bool = False,
    can_store: bool = False,
) -> ApiRequest:
    """Check a body and tokenize its prompt (see `Parser`); it may go on from a response that is `kept`.

    With `is_prompt_only` the answer has no tokens, and its prompt is in the prefix cache. With `can_store` the response
    is kept if the body does not say otherwise, and may be made in the background.
    """
    read = _read(request, kept, can_store=can_store)
    body, response_id = read.body, f"resp_{secrets.token_hex(16)}"
    with renaming(NAMES_ON_CHAT):
        translated = Translated(response_id, read.use, _requested(body), is_prompt_only)
        drops_oldest = body.truncation == "auto"
        parsed = chat_request(request, read.chat, read.ignored, translated, drops_oldest=drops_oldest)
    kept.begin(response_id, read.given)
    asked = _asked(read, parsed)
    if can_store and read.body.store is not False:
        own_items = msgspec.json.encode(read.given[read.num_before :])  # bytes of orjson keep 4 KiB each
        asked = replace(asked.compact(), store=True, background=bool(read.body.background), own_items=own_items)
    return replace(parsed, asked=asked, goes_on_from=asked.previous_response_id)


class CountedPrompt(NamedTuple):
    """The number of tokens in a prompt, and the names of the ignored fields of its body."""

    num_tokens: int
    ignored: tuple[str, ...]


def count_prompt(
    request: RequestContext, kept: KeptResponses = NOTHING_KEPT, *, can_store: bool = False
) -> CountedPrompt:
    """Check a body as `parse_response` does, and count the tokens in its prompt, however many (see `Parser`)."""
    read = _read(request, kept, can_store=can_store)
    with renaming(NAMES_ON_CHAT):
        prompt = chat_prompt(request, read.chat, tools=read.use)
        if read.body.truncation == "auto":
            prompt = fitted_prompt(request, read.chat, prompt)
        return CountedPrompt(prompt.count(), read.ignored)


class _Read(NamedTuple):
    """A checked body, what of it is echoed as it came, and the chat that it means.

    The first `num_before` of the items that are `given` are those of earlier responses.
    """

    body: ResponsesBody
    fields: dict[str, Any]
    given: Sequence[object]
    num_before: int
    ignored: tuple[str, ...]
    tools: RequestTools
    use: ToolUse
    chat: ChatBody


def _read(request: RequestContext, kept: KeptResponses, *, can_store: bool) -> _Read:
    fields = parse_object(request.body)
    given: Any = fields.pop("input", None)
    body, ignored = request.check(fields, ResponsesBody)
    if body.background and not can_store:
        raise UnsupportedParameter(
            "background is true, but nothing is kept here; leave it out, and stream the response.", param="background"
        )
    if body.background and body.store is False:
        raise InvalidValue(
            "background is true and store is false: nobody could come back to the response; change one of them.",
            param="background",
        )
    before: list[object] = []
    if body.previous_response_id is not None:
        request.note_further(kept.num_bytes_of(body.previous_response_id))
        before += kept.items_of(body.previous_response_id)
    if given in (None, "", []) and not before:
        raise InvalidValue(
            f"input is {'missing' if given is None else 'empty'}; send a text or a list of items.", param="input"
        )
    own = ReadItems([]) if given in (None, "", []) else read_items(given)
    tools = RequestTools(body.tools)
    messages = as_messages([*read_items(before).items, *own.items], tools, len(before))
    if body.instructions:
        messages.insert(0, Message(role="system", content=body.instructions))
    left_out = (*own.left_out, *tools.ignored)
    if left_out and request.context.config.server.strict:
        raise UnsupportedParameter(
            f"{left_out[0]} has no effect here, and --strict rejects what is ignored; leave it out.", param=left_out[0]
        )
    use = tools.use(body.tool_choice, body.parallel_tool_calls, request.context.text.answers.calls)
    chat = _chat_of(body, messages)
    items = [*before, *([{"role": "user", "content": given}] if isinstance(given, str) else given or [])]
    return _Read(body, fields, items, len(before), (*ignored, *left_out), tools, use, chat)


def _chat_of(body: ResponsesBody, messages: list[Message]) -> ChatBody:
    """Return the chat that a body means, but for its tools and the form of its answer."""
    options, has_logprobs = body.stream_options, LOGPROBS in (body.include or ())
    chat = ChatBody(
        messages=messages,
        model=body.model,
        max_tokens=None if body.max_output_tokens is None else min(body.max_output_tokens, MAX_TOKENS),
        logprobs=has_logprobs,
        top_logprobs=(body.top_logprobs or 0) if has_logprobs else None,
        parallel_tool_calls=body.parallel_tool_calls,
        reasoning_effort=None if body.reasoning is None else body.reasoning.effort,
        stream_options=None if options is None else StreamOptions(slow_reader=options.slow_reader),
        **{name: getattr(body, name) for name in AS_ON_CHAT},
    )
    check_values(chat)
    return chat


def _requested(body: ResponsesBody) -> Requested | None:
    """Return the form that a body demands of the text of its answer."""
    form = None if body.text is None else body.text.format
    if isinstance(form, AnyObject):
        return Requested(StructuredOutputs(json=ANY_OBJECT), "text.format", yields_to_calls=True)
    if isinstance(form, SchemaText):
        return Requested(StructuredOutputs(json=form.schema), "text.format.schema", yields_to_calls=True)
    return None


def _asked(read: _Read, parsed: ApiRequest) -> AskedResponse:
    """Return the part of a body that its answer needs."""
    body, params = read.body, parsed.request.params
    reasoning = body.reasoning
    summary = None if reasoning is None else reasoning.summary or reasoning.generate_summary
    given = read.fields.get("text") or {}
    text: dict[str, Any] = {"format": {"type": "text"}}
    text |= {name: given[name] for name in ("format", "verbosity") if given.get(name) is not None}
    form = text["format"]
    short = {"type": form["type"], "name": form.get("name"), "schema": {}} if "schema" in form else form
    return AskedResponse(
        response_id=parsed.id,
        created_at=parsed.created,
        model=parsed.model,
        instructions=body.instructions,
        metadata=body.metadata or {},
        previous_response_id=body.previous_response_id,
        reasoning=AskedReasoning(effort=None if reasoning is None else reasoning.effort, summary=summary),
        has_summary=summary is not None,
        text=text,
        short_text={**text, "format": short},
        tool_choice=body.tool_choice or "auto",
        tools=repeated_tools(body.tools or []),
        temperature=params.temperature,
        top_p=params.top_p,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        top_logprobs=body.top_logprobs or 0,
        has_logprobs=params.logprobs is not None,
        max_output_tokens=body.max_output_tokens,
        max_tool_calls=body.max_tool_calls,
        parallel_tool_calls=body.parallel_tool_calls is not False,
        truncation=body.truncation or "disabled",
        user=body.user,
        safety_identifier=body.safety_identifier,
        prompt_cache_key=body.prompt_cache_key,
        has_timings=bool(body.timings),
        called=read.tools.called,
    )
