"""From the body of a chat to its prompt, and to the request for its answers, for every route that has chats."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from app.api.body.chat_fields import Message
from app.api.body.parse_request import RequestContext, new_id, renaming
from app.api.body.schemas import UNSET_NUMBER, ChatBody, sampling_params
from app.api.body.structured_output import requested_outputs
from app.api.body.template_options import render_options
from app.api.body.tool_messages import tool_fields
from app.api.wire.api_request import ApiRequest
from app.api.wire.shown_prompt import ShownPrompt
from app.contract.admission import DefaultLength, output_limit
from app.contract.errors import InvalidValue, NoChatTemplate
from app.text.answer.answer_demand import Requested
from app.text.answer.tool_use import ToolUse, choose_tools
from app.text.entry.chat_prompt import ChatPrompt
from app.text.entry.chat_roles import MAY_BE_EMPTY, template_role

MAX_MESSAGES = 8192
ANSWER_SHARE = 4
"""Where old turns are left out for an answer, it may need a quarter of the context, or less by its `max_tokens`."""
AS_MESSAGES = {"prompt": "messages"}
"""The prompt of a chat as its errors name it."""


class Translated(NamedTuple):
    """The demands of another API's body on an answer, instead of the fields of a chat, which its errors would name.

    The limit of such an answer is lowered to what fits, as clients of those APIs expect.

    Attributes:
        request_id: the id of the answer.
        tools: those that it may call.
        requested: the form that it must have.
        is_prompt_only: it has no tokens; its prompt is computed into the prefix cache.
    """

    request_id: str
    tools: ToolUse
    requested: Requested | None = None
    is_prompt_only: bool = False


def parse_chat(request: RequestContext) -> ApiRequest:
    """Check a chat body, render its template and tokenize (see `Parser`)."""
    return chat_request(request, *request.read(ChatBody))


def chat_request(
    request: RequestContext,
    body: ChatBody,
    ignored: tuple[str, ...],
    translated: Translated | None = None,
    *,
    drops_oldest: bool = False,
) -> ApiRequest:
    """Return the request for answers to a chat; `ignored` are the fields of the client that are. Any thread.

    A body of another API is `translated`. With `drops_oldest` a chat that is too long loses its oldest turns (see
    `fitted_prompt`).

    Raises:
        RequestError: see `chat_prompt` and `RequestBuilder.answer`.
    """
    names = {**AS_MESSAGES, **body.paths_in_reasoning}
    if body.top_logprobs is not None:
        names["logprobs"] = "top_logprobs"
    if body.max_completion_tokens is not None:
        names["max_tokens"] = "max_completion_tokens"
    tools = None if translated is None else translated.tools
    prompt = chat_prompt(request, body, is_parallel=body.parallel_tool_calls, tools=tools)
    max_tokens, logprobs = _max_tokens(body), _logprobs(body)  # their errors name the body's own fields
    is_first = all(message.role != "assistant" for message in body.messages)
    with renaming(names), request.context.first_prompts.watched(request.model_info, is_first=is_first):
        requested = requested_outputs(body) if translated is None else translated.requested
        params = sampling_params(body, requested, max_tokens=max_tokens, logprobs=logprobs)
        if drops_oldest:
            prompt = fitted_prompt(request, body, prompt)
        encoded, demand = prompt.encode(), request.demand(requested, prompt.tools)
        num_shown = 0 if params.prompt_logprobs is None else len(encoded.token_ids)
        builder = request.builder if translated is None else replace(request.builder, is_clamped=True)
        planned = builder.answer(
            new_id("chatcmpl") if translated is None else translated.request_id,
            encoded,
            params,
            demand,
            request.terms(body),
            output=output_limit(params, num_shown_tokens=num_shown),
            length=DefaultLength(
                context_share=body.context_share,
                is_unlimited=UNSET_NUMBER in (body.max_tokens, body.max_completion_tokens),
            ),
        )
    if translated is not None and translated.is_prompt_only:
        planned = planned._replace(request=replace(planned.request, is_prompt_only=True))
    shown = ShownPrompt(has_logprobs=body.prompt_logprobs is not None)
    return request.api_request(body, ignored, [planned], demand, shown, _reasoning_fields(request, body))


def chat_prompt(
    request: RequestContext, body: ChatBody, *, is_parallel: bool | None = None, tools: ToolUse | None = None
) -> ChatPrompt:
    """Return the checked messages and tools of a body, as the model's template renders them. Any thread.

    `is_parallel` says whether the answer may call several tools; the prompt does not depend on it. `tools` are those of
    another API's body, instead of the body's.

    Raises:
        RequestError: the model has no template, or a field is rejected; the error names it.
    """
    text = request.context.text
    model, template = request.context.check_model(body.model), text.chat_template
    if template is None:
        raise NoChatTemplate(
            f"The model {model!r} has no chat template; use /v1/completions, or start the server with --chat-template."
        )
    if not 1 <= len(body.messages) <= MAX_MESSAGES:
        raise InvalidValue(
            f"messages has {len(body.messages)} items; it must have 1 to {MAX_MESSAGES}.", param="messages"
        )
    messages = [_check_message(index, message) for index, message in enumerate(body.messages)]
    if tools is None:
        tools = choose_tools(body.tools, body.tool_choice, is_parallel, text.answers.calls)
    with renaming(body.paths_in_reasoning):
        options = render_options(body, text.tokenizer)
    with renaming(AS_MESSAGES):
        return ChatPrompt(text, template, messages, options, tools, request.model_info.max_model_len)


def fitted_prompt(request: RequestContext, body: ChatBody, prompt: ChatPrompt) -> ChatPrompt:
    """Return the prompt of a chat, without its oldest turns if there is too little room for the answer. Any thread.

    Raises:
        RequestError: see `ChatPrompt.fitted`.
    """
    model = request.model_info
    context = min(model.max_model_len, model.kv_capacity_tokens)
    needed = min(_max_tokens(body) or context, context // ANSWER_SHARE)
    return prompt.fitted(context - max(needed, 1))


def _check_message(index: int, message: Message) -> dict[str, object]:
    """Return a message in the form that templates expect."""
    path = f"messages[{index}].role"
    role = template_role(message.role, path)
    fields = tool_fields(index, message)
    if message.content in (None, []) and message.role not in MAY_BE_EMPTY:
        path, what = f"messages[{index}].content", "missing" if message.content is None else "an empty list"
        raise InvalidValue(f"{path} is {what}; it must be a text or a list of text parts.", param=path)
    texts = message.texts
    content = texts[0] if len(texts) == 1 else [{"type": "text", "text": text} for text in texts]
    return {"role": role, "content": content, **fields}


def _reasoning_fields(request: RequestContext, body: ChatBody) -> tuple[str, ...]:
    if body.include_reasoning is False:
        return ()
    is_both = request.context.config.server.reasoning_field == "both"
    return ("reasoning_content", "reasoning") if is_both else ("reasoning_content",)


def _max_tokens(body: ChatBody) -> int | None:
    given = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    if body.max_tokens not in (None, given):
        message = "max_tokens and max_completion_tokens differ; send one of them."
        raise InvalidValue(message, param="max_completion_tokens")
    return None if given == UNSET_NUMBER else given


def _logprobs(body: ChatBody) -> int | None:
    if body.top_logprobs and not body.logprobs:  # 0 requests nothing; some clients always send both fields
        raise InvalidValue("top_logprobs needs `logprobs: true`.", param="top_logprobs")
    return (body.top_logprobs or 0) if body.logprobs else None
