"""`POST /v1/chat/completions`: from messages to a response."""

from __future__ import annotations

from starlette.requests import Request
from starlette.types import ASGIApp

from app.api.choice_format import ChatFormat
from app.api.context import context_of
from app.api.parse_request import ApiRequest, RequestContext, parse_post, renaming
from app.api.schemas import ChatBody, Message, sampling_params
from app.api.stream_response import make_response
from app.contract.errors import InvalidValue, NoChatTemplate, UnsupportedParameter

MAX_MESSAGES = 1024
# `developer` is OpenAI's newer word for `system`; templates have the older one.
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
UNSUPPORTED_ROLES = ("tool", "function")


async def chat_completions(request: Request) -> ASGIApp:
    """Answer a chat request."""
    chat = await parse_post(request, parse_chat)
    return make_response(context_of(request), chat, ChatFormat, request.headers)


def parse_chat(request: RequestContext) -> ApiRequest:
    """Check a chat body, render its template and tokenize (see `Parser`)."""
    body, ignored = request.read(ChatBody)
    model, template = request.context.check_model(body.model), request.context.text.chat_template
    if template is None:
        raise NoChatTemplate(
            f"The model {model!r} has no chat template; use /v1/completions, or start the server with --chat-template."
        )
    if not 1 <= len(body.messages) <= MAX_MESSAGES:
        raise InvalidValue(
            f"messages has {len(body.messages)} items; it must have 1 to {MAX_MESSAGES}.", param="messages"
        )
    messages = [_check_message(index, message) for index, message in enumerate(body.messages)]
    names = {"prompt": "messages"}
    if body.top_logprobs is not None:
        names["logprobs"] = "top_logprobs"
    if body.max_completion_tokens is not None:
        names["max_tokens"] = "max_completion_tokens"
    with renaming(names):
        request.check_num_chars(sum(map(_num_chars, body.messages)))
        params = sampling_params(body, max_tokens=_max_tokens(body), logprobs=_logprobs(body))
        token_ids = template.render(
            messages, enable_thinking=_enable_thinking(body), max_tokens=request.model_info.max_model_len
        )
        return request.engine_request("chatcmpl", token_ids, params, body, ignored)


def _check_message(index: int, message: Message) -> dict[str, object]:
    """Return a message in the form that templates expect."""
    path = f"messages[{index}].role"
    if message.role in UNSUPPORTED_ROLES:
        raise UnsupportedParameter(f"{path} is {message.role!r}; tools are not supported.", param=path)
    if message.role not in ROLES:
        raise InvalidValue(f"{path} is {message.role[:100]!r}; it must be one of {', '.join(ROLES)}.", param=path)
    if message.content is None and message.role == "assistant":
        return {"role": "assistant", "content": ""}  # some clients send null for an empty content
    if message.content is None or message.content == []:
        path = f"messages[{index}].content"
        raise InvalidValue(f"{path} is missing; it must be a text or a list of text parts.", param=path)
    content: object = message.content
    if isinstance(message.content, list):
        content = [{"type": "text", "text": part.text} for part in message.content]
    return {"role": ROLES[message.role], "content": content}


def _num_chars(message: Message) -> int:
    content = message.content or ""
    return len(content) if isinstance(content, str) else sum(len(part.text) for part in content)


def _max_tokens(body: ChatBody) -> int | None:
    if body.max_completion_tokens is None:
        return body.max_tokens
    if body.max_tokens not in (None, body.max_completion_tokens):
        raise InvalidValue("max_tokens and max_completion_tokens differ; send one of them.", param="max_tokens")
    return body.max_completion_tokens


def _logprobs(body: ChatBody) -> int | None:
    if body.top_logprobs and not body.logprobs:  # 0 requests nothing; some clients always send both fields
        raise InvalidValue("top_logprobs needs `logprobs: true`.", param="top_logprobs")
    return (body.top_logprobs or 0) if body.logprobs else None


def _enable_thinking(body: ChatBody) -> bool | None:
    options = body.chat_template_kwargs or {}
    for name, value in options.items():
        if name != "enable_thinking" or not isinstance(value, bool):
            raise UnsupportedParameter(
                "chat_template_kwargs may hold `enable_thinking` (true or false) and nothing else.",
                param=f"chat_template_kwargs.{name}",
            )
    return options.get("enable_thinking")
