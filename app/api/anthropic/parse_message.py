"""From the bodies of the Messages API to a request for an answer, or to the number of tokens in the prompt."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Generic, NamedTuple, TypeVar

import orjson

from app.api.anthropic.hosted_blocks import leave_out_hosted
from app.api.anthropic.message_fields import (
    CountTokensBody,
    DisabledThinking,
    EnabledThinking,
    JsonSchemaOutput,
    MessagesBody,
)
from app.api.anthropic.message_tools import message_tools
from app.api.anthropic.message_turns import chat_messages, is_continued
from app.api.body.chat_fields import Message
from app.api.body.json_body import parse_object
from app.api.body.parse_chat import Translated, chat_prompt, chat_request
from app.api.body.parse_request import RequestContext, renaming
from app.api.body.schemas import ChatBody, check_values
from app.api.wire.api_request import ApiRequest
from app.contract.errors import ContextLengthExceeded, InvalidValue, KVCapacityExceeded, UnsupportedParameter
from app.contract.grammar import StructuredOutputs
from app.contract.sampling_params import MAX_STOP_LENGTH, MAX_STOP_STRINGS
from app.text.answer.answer_demand import Requested
from app.text.answer.tool_use import ToolUse

SAMPLE_CHARS = 2**13
"""The length of the text by which the tokens of a prompt are estimated that is too long to be encoded."""
_OTHER_NAMES = {"continue_final_message": "messages", "thinking_token_budget": "thinking.budget_tokens"}
Body = TypeVar("Body", bound=CountTokensBody)


class AskedMessage(NamedTuple):
    """The part of a body that the wire of its answer needs.

    Attributes:
        is_lowered: whether the answer may have fewer tokens than the body allows, because no more fit.
    """

    is_lowered: bool


class Counted(NamedTuple):
    """The number of tokens in a prompt, and the names of the ignored fields of its body."""

    input_tokens: int
    ignored: tuple[str, ...]


class _Read(NamedTuple, Generic[Body]):
    """A checked body, and what it is as a chat."""

    body: Body
    chat: ChatBody
    tools: ToolUse
    ignored: tuple[str, ...]


def parse_message(request: RequestContext) -> ApiRequest:
    """Check a body, render the model's template and tokenize (see `Parser`).

    The answer's limit is lowered to what fits. One of no tokens computes the prompt into the prefix cache.
    """
    body, chat, tools, ignored = _read(request, MessagesBody)
    _add_sampling(chat, body)
    translated = Translated(f"msg_{secrets.token_hex(16)}", tools, _requested(body), is_prompt_only=not body.max_tokens)
    with _naming_length(request, chat, tools), renaming(_OTHER_NAMES):
        parsed = chat_request(request, chat, ignored, translated)
    limit = parsed.request.params.max_tokens
    return replace(parsed, asked=AskedMessage(is_lowered=limit is not None and limit < body.max_tokens))


def parse_count(request: RequestContext) -> Counted:
    """Check a body and count the tokens of its prompt, however many (see `Parser`)."""
    _, chat, tools, ignored = _read(request, CountTokensBody)
    with renaming(_OTHER_NAMES):
        return Counted(chat_prompt(request, chat, tools=tools).count(), ignored)


def _read(request: RequestContext, kind: type[Body]) -> _Read[Body]:
    fields = parse_object(request.body)
    left_out = leave_out_hosted(fields)
    body, ignored = request.check(fields, kind)
    tools = message_tools(body, request.context.text.answers.calls)
    left_out += tools.left_out
    server = request.context.config.server
    if left_out and server.strict:
        raise UnsupportedParameter(
            f"{left_out[0]} is of a kind that only Anthropic runs; leave it out, or start the server without --strict.",
            param=left_out[0],
        )
    messages = chat_messages(body, tools.definitions, keeps_billing_line=server.keep_billing_line)
    output = body.output_config
    chat = ChatBody(
        model=body.model,
        messages=messages,
        continue_final_message=is_continued(messages),
        reasoning_effort=None if output is None else output.effort,
    )
    _add_thinking(chat, body, request)
    return _Read(body, chat, tools.use, (*ignored, *left_out))


def _add_thinking(chat: ChatBody, body: CountTokensBody, request: RequestContext) -> None:
    """Set the fields that say whether the model reasons, and its budget if the marks of its reasoning are tokens."""
    if isinstance(body.thinking, EnabledThinking | DisabledThinking):
        chat.chat_template_kwargs = {"enable_thinking": isinstance(body.thinking, EnabledThinking)}
    style = request.context.text.answers.reasoning
    if isinstance(body.thinking, EnabledThinking) and style is not None:
        token_id = request.context.text.tokenizer.token_id
        if all(token_id(mark) is not None for mark in style.marks):
            chat.thinking_token_budget = body.thinking.budget_tokens


def _add_sampling(chat: ChatBody, body: MessagesBody) -> None:
    """Set the fields of a chat that say how its answer is sampled, and when."""
    _check_stop(body.stop_sequences or ())
    chat.max_tokens = max(1, body.max_tokens)
    chat.stop = body.stop_sequences or None
    for name in (
        "stream",
        "temperature",
        "top_p",
        "top_k",
        "repetition_stop",
        "seed",
        "priority",
        "cache_salt",
        "queue_timeout",
        "timeout",
    ):
        setattr(chat, name, getattr(body, name))
    check_values(chat)


def _check_stop(sequences: Sequence[str]) -> None:
    if len(sequences) > MAX_STOP_STRINGS:
        raise InvalidValue(
            f"stop_sequences has {len(sequences)} texts; at most {MAX_STOP_STRINGS} are allowed.",
            param="stop_sequences",
        )
    for index, text in enumerate(sequences):
        if not 1 <= len(text) <= MAX_STOP_LENGTH:
            path = f"stop_sequences[{index}]"
            raise InvalidValue(
                f"{path} has {len(text)} characters; it must have 1 to {MAX_STOP_LENGTH} of them.", param=path
            )


def _requested(body: MessagesBody) -> Requested | None:
    """Return the form that the answer must have; one of no tokens has none."""
    new = None if body.output_config is None else body.output_config.format
    if new is not None and body.output_format is not None:
        raise InvalidValue(
            "output_config.format and output_format both say what the answer must be; send one of them.",
            param="output_format",
        )
    found: JsonSchemaOutput | None = new or body.output_format
    if found is None or not body.max_tokens:
        return None
    path = "output_format.schema" if new is None else "output_config.format.schema"
    return Requested(StructuredOutputs(json=found.schema), path, yields_to_calls=True)


@contextmanager
def _naming_length(request: RequestContext, chat: ChatBody, tools: ToolUse) -> Iterator[None]:
    """Say that a prompt is too long in the words from which clients read both numbers."""
    try:
        yield
    except (ContextLengthExceeded, KVCapacityExceeded) as error:
        model = request.model_info
        limit = min(model.max_model_len - 1, model.kv_capacity_tokens)
        num_tokens = max(limit + 1, _num_tokens(request, chat, tools))
        message = f"prompt is too long: {num_tokens} tokens > {limit} maximum"
        raise type(error)(message, param="messages") from None


def _num_tokens(request: RequestContext, chat: ChatBody, tools: ToolUse) -> int:
    """Return the number of tokens of a prompt; an estimate of one that is too long to be encoded."""
    try:
        return len(_encoded(request, chat, tools))
    except ContextLengthExceeded:
        texts = [text for message in chat.messages for text in _all_texts(message)]
        num_chars, sample = tools.num_chars + sum(map(len, texts)), "".join(texts)[:SAMPLE_CHARS]
        num_in_sample = len(request.context.text.tokenizer.encode(sample, add_special_tokens=False))
        return num_chars * num_in_sample // max(len(sample), 1)


def _all_texts(message: Message) -> Iterator[str]:
    """Yield the texts of a message and the arguments of its calls; its reasoning is mostly left out by templates."""
    yield from message.texts
    for call in message.tool_calls or ():
        arguments = call.function.arguments
        yield arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode()


def _encoded(request: RequestContext, chat: ChatBody, tools: ToolUse) -> Sequence[Any]:
    return chat_prompt(request, chat, tools=tools).encode().token_ids
