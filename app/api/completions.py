"""`POST /v1/completions`: from a prompt to its continuation."""

from __future__ import annotations

from starlette.requests import Request
from starlette.types import ASGIApp

from app.api.choice_format import CompletionFormat
from app.api.context import context_of
from app.api.parse_request import ApiRequest, RequestContext, parse_post
from app.api.schemas import CompletionBody, sampling_params
from app.api.stream_response import make_response
from app.contract.errors import InvalidValue, UnsupportedParameter

DEFAULT_MAX_TOKENS = 16


async def completions(request: Request) -> ASGIApp:
    """Answer a completion request."""
    completion = await parse_post(request, parse_completion)
    return make_response(context_of(request), completion, CompletionFormat, request.headers)


def parse_completion(request: RequestContext) -> ApiRequest:
    """Check a completion body and tokenize its prompt (see `Parser`)."""
    body, ignored = request.read(CompletionBody)
    request.context.check_model(body.model)
    prompt = _check_prompt(body.prompt)
    if isinstance(prompt, str):
        request.check_num_chars(len(prompt))
        text, limit = request.context.text, request.model_info.max_model_len
        prompt = [*text.chat_prefix(prompt, max_tokens=limit), *text.tokenizer.encode(prompt, max_tokens=limit)]
    params = sampling_params(body, max_tokens=body.max_tokens, logprobs=body.logprobs)
    return request.engine_request("cmpl", prompt, params, body, ignored, default_max_tokens=DEFAULT_MAX_TOKENS)


def _check_prompt(prompt: object) -> str | list[int]:
    """Return the prompt of a body, which is a text, token ids, or a list of exactly one of these."""
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
