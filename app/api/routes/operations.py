"""The table of the API's routes: the application serves it, and the OpenAPI document describes it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

import msgspec
from starlette.requests import Request
from starlette.types import ASGIApp

from app.api.anthropic.message_answers import MessageAnswer
from app.api.anthropic.message_errors import ANTHROPIC_ERRORS
from app.api.anthropic.message_fields import CountTokensBody, MessagesBody
from app.api.anthropic.messages_route import count_tokens, create_message
from app.api.body.answer_journal import Route
from app.api.body.any_body import AnyBody
from app.api.body.parse_chat import parse_chat
from app.api.body.parse_completion import parse_completion
from app.api.body.parse_embeddings import EmbeddingsBody
from app.api.body.schemas import ChatBody, CompletionBody
from app.api.body.tokenize_bodies import KINDS, DetokenizeBody
from app.api.http.access_log import STREAM_PATH
from app.api.http.error_shape import OPENAI_ERRORS, ErrorShape
from app.api.responses.kept.kept_response import (
    DeletedResponse,
    InputItems,
    cancel_response,
    delete_response,
    get_response,
    list_input_items,
)
from app.api.responses.resource import ResponseObject
from app.api.responses.response_fields import ResponsesBody
from app.api.responses.responses import (
    PromptCount,
    as_before,
    count_response_tokens,
    create_response,
    parse_restored_response,
    response_wire,
)
from app.api.routes.chat import chat_completions, chat_wire
from app.api.routes.completions import completion_wire, completions
from app.api.routes.embeddings import embeddings
from app.api.routes.health import livez, readyz
from app.api.routes.kept_stream import cancel_stream, resume_stream
from app.api.routes.models import get_model, list_models
from app.api.routes.tokenize import apply_template, count_input_tokens, detokenize, tokenize
from app.api.routes.version import version
from app.api.wire import answers
from app.api.wire.framing import NDJSON, SSE, Framing

Handler = Callable[[Request], Awaitable[ASGIApp]]


RESPONSES_PATH = "/v1/responses"
OF_ANSWERS = ("X-Quire-Resume", "Idempotency-Key")
"""The headers of requests whose answers can be kept."""


class Operation(NamedTuple):
    """One route. `bodies` are the alternatives of a POST's body, `answer` is the JSON of a 200, None is text.

    With `has_streams` the answer can also be a stream, with `can_be_empty` a 204, and without `needs_key` the route is
    open. `query` and `headers` name its parameters there, `errors` is the shape of errors at the path and below it, and
    `framings` are those of its streams.
    """

    method: str
    path: str
    handler: Handler
    summary: str
    answer: type[msgspec.Struct] | None
    bodies: tuple[type[AnyBody], ...] = ()
    has_streams: bool = False
    can_be_empty: bool = False
    query: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()
    needs_key: bool = True
    errors: ErrorShape = OPENAI_ERRORS
    framings: tuple[Framing, ...] = (SSE, NDJSON)


OPERATIONS = (
    Operation("GET", "/livez", livez, "Whether the process works", answers.HealthAnswer, needs_key=False),
    Operation("GET", "/readyz", readyz, "Whether requests are accepted", answers.HealthAnswer, needs_key=False),
    Operation("GET", "/health", readyz, "The same as /readyz", answers.HealthAnswer, needs_key=False),
    Operation("GET", "/version", version, "The version of the server", answers.VersionAnswer),
    Operation("GET", "/v1/models", list_models, "The served model, in a list", answers.ModelsAnswer),
    Operation("GET", "/v1/models/{model:path}", get_model, "The served model, by name", answers.ModelAnswer),
    Operation(
        "POST",
        "/v1/chat/completions",
        chat_completions,
        "The answer to a conversation",
        answers.ChatAnswer,
        (ChatBody,),
        has_streams=True,
        headers=OF_ANSWERS,
    ),
    Operation(
        "POST",
        "/v1/chat/completions/input_tokens",
        count_input_tokens,
        "The number of tokens in the prompt of a conversation",
        answers.CountAnswer,
        (ChatBody,),
    ),
    Operation(
        "POST",
        "/v1/completions",
        completions,
        "The continuations of prompts",
        answers.CompletionAnswer,
        (CompletionBody,),
        has_streams=True,
        headers=OF_ANSWERS,
    ),
    Operation(
        "POST",
        RESPONSES_PATH,
        create_response,
        "The response to a conversation",
        ResponseObject,
        (ResponsesBody,),
        has_streams=True,
        framings=(SSE,),
    ),
    Operation(
        "POST",
        RESPONSES_PATH + "/input_tokens",
        count_response_tokens,
        "The number of tokens in the prompt of a response",
        PromptCount,
        (ResponsesBody,),
    ),
    Operation(
        "GET",
        RESPONSES_PATH + "/{id}",
        get_response,
        "A kept response",
        ResponseObject,
        has_streams=True,
        query=("include", "stream", "starting_after", "include_obfuscation"),
        framings=(SSE,),
    ),
    Operation("DELETE", RESPONSES_PATH + "/{id}", delete_response, "Deletes a kept response", DeletedResponse),
    Operation(
        "POST",
        RESPONSES_PATH + "/{id}/cancel",
        cancel_response,
        "Cancels a response that is made in the background",
        ResponseObject,
    ),
    Operation(
        "GET",
        RESPONSES_PATH + "/{id}/input_items",
        list_input_items,
        "The items of the input of a kept response",
        InputItems,
        query=("limit", "order", "after", "include"),
    ),
    Operation(
        "GET",
        STREAM_PATH + "{id}",
        resume_stream,
        "The rest of a resumable answer",
        None,
        has_streams=True,
        can_be_empty=True,
        query=("after",),
        headers=("Last-Event-ID",),
    ),
    Operation("DELETE", STREAM_PATH + "{id}", cancel_stream, "Cancels a resumable answer", None, can_be_empty=True),
    Operation(
        "POST",
        "/v1/messages",
        create_message,
        "The answer to a conversation, in Anthropic's API",
        MessageAnswer,
        (MessagesBody,),
        has_streams=True,
        errors=ANTHROPIC_ERRORS,
    ),
    Operation(
        "POST",
        "/v1/messages/count_tokens",
        count_tokens,
        "The number of tokens in the prompt of a conversation, in Anthropic's API",
        answers.CountAnswer,
        (CountTokensBody,),
        errors=ANTHROPIC_ERRORS,
    ),
    Operation("POST", "/v1/embeddings", embeddings, "Texts as vectors", answers.EmbeddingsAnswer, (EmbeddingsBody,)),
    Operation(
        "POST", "/tokenize", tokenize, "The token ids of a text or a chat", answers.TokensAnswer, (*KINDS.values(),)
    ),
    Operation("POST", "/detokenize", detokenize, "The text of token ids", answers.TextAnswer, (DetokenizeBody,)),
    Operation(
        "POST", "/apply-template", apply_template, "The prompt of a chat as text", answers.PromptAnswer, (ChatBody,)
    ),
)


JOURNALED = {
    "/v1/chat/completions": Route(parse_chat, chat_wire),
    "/v1/completions": Route(parse_completion, completion_wire),
    "/ws": Route(parse_chat, chat_wire),
    RESPONSES_PATH: Route(parse_restored_response, response_wire, as_before),
}
"""How the routes whose answers can be kept read their bodies and write their answers."""


def body_kinds() -> tuple[type[AnyBody], ...]:
    """Return the types of all bodies, once each."""
    return tuple(dict.fromkeys(kind for operation in OPERATIONS for kind in operation.bodies))
