"""`POST /v1/completions`: a prompt in, its continuation out."""

from __future__ import annotations

from starlette.requests import Request
from starlette.types import ASGIApp

from app.api.completion_format import CompletionFormat
from app.api.context import context_of
from app.api.json_body import read_body
from app.api.parse_request import ApiRequest, RequestContext, parse
from app.api.schemas import CompletionBody, sampling_params
from app.api.stream_response import answer
from app.contract.errors import InvalidValue, UnsupportedParameter

DEFAULT_MAX_TOKENS = 16


async def completions(request: Request) -> ASGIApp:
    """Answer a completion request."""
    context = context_of(request)
    body = await read_body(request, context.config.server.max_request_bytes)
    completion = await parse(body, context, parse_completion, context.keys.sender_of(request))
    return answer(context, completion, CompletionFormat, request.headers)


def parse_completion(arrival: RequestContext) -> ApiRequest:
    """Check a completion body and tokenize its prompt (see `Parser`)."""
    body, ignored = arrival.read(CompletionBody)
    arrival.context.check_model(body.model)
    prompt = _check_prompt(body.prompt)
    if isinstance(prompt, str):
        arrival.check_num_chars(len(prompt))
        text, most = arrival.text, arrival.model_info.max_model_len
        prompt = [*text.chat_prefix(prompt, max_tokens=most), *text.tokenizer.encode(prompt, max_tokens=most)]
    params = sampling_params(body, max_tokens=body.max_tokens, logprobs=body.logprobs)
    return arrival.request("cmpl", prompt, params, body, ignored, default_max_tokens=DEFAULT_MAX_TOKENS)


def _check_prompt(prompt: object) -> str | list[int]:
    """Return the one prompt of a body: a text, token ids, or a list of exactly one of these."""
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], (str, list)):
        if len(prompt) > 1:
            raise UnsupportedParameter(
                f"prompt is a list of {len(prompt)} prompts; send one request for each.", param="prompt"
            )
        prompt = prompt[0]
    if isinstance(prompt, str) and prompt:
        return prompt
    if isinstance(prompt, list) and prompt and all(type(token_id) is int for token_id in prompt):
        return prompt
    raise InvalidValue("prompt must be a text or a list of token ids, and not empty.", param="prompt")
