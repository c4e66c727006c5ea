"""From the body of `POST /v1/completions` to an `ApiRequest`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from app.api.body.parse_request import RequestContext, new_id, renaming
from app.api.body.prompts import Prompt, check_num_prompts, read_prompts
from app.api.body.schemas import UNSET_NUMBER, CompletionBody, sampling_params
from app.api.body.structured_output import requested_outputs
from app.api.wire.api_request import ApiRequest
from app.api.wire.shown_prompt import Echo, ShownPrompt
from app.contract.admission import DefaultLength, output_limit
from app.contract.errors import InvalidValue, UnsupportedParameter
from app.contract.sampling_params import SamplingParams
from app.text.answer.answer_demand import Requested
from app.text.entry.chat_prompt import EncodedPrompt

DEFAULT_MAX_TOKENS = 16


def parse_completion(request: RequestContext) -> ApiRequest:
    """Check a completion body and tokenize its prompts (see `Parser`)."""
    body, ignored = request.read(CompletionBody)
    request.context.check_model(body.model)
    prompts = read_prompts(body.prompt)
    requested = requested_outputs(body)
    params = _params(body, requested, can_score=request.model_info.reads_prompts)
    check_num_prompts(len(prompts), params)
    names = [f"prompt[{index}]" if len(prompts) > 1 else "prompt" for index in range(len(prompts))]
    builder, terms, demand = request.builder, request.terms(body), request.demand(requested)
    encoded = []
    for name, prompt in zip(names, prompts, strict=True):
        with renaming({"prompt": name}):
            is_added = body.add_special_tokens is not False
            encoded.append(builder.encode_for_completion(prompt, adds_special_tokens=is_added))
    is_shown = body.echo or params.prompt_logprobs is not None
    num_shown = sum(len(each.token_ids) for each in encoded) if is_shown else 0
    scores = {} if body.prompt_logprobs is not None else {"prompt_logprobs": "echo"}
    length = DefaultLength(otherwise=DEFAULT_MAX_TOKENS, is_unlimited=body.max_tokens == UNSET_NUMBER)
    with renaming(scores):
        output = output_limit(params, len(prompts), num_shown)
    longest = max(range(len(encoded)), key=lambda index: len(encoded[index].token_ids))
    with renaming({"prompt": names[longest], **scores}):  # first, so that an error names a number that works for all
        builder.admit(encoded[longest], params, output, length)
    planned, answer_id = [], new_id("cmpl")
    for index, (name, each) in enumerate(zip(names, encoded, strict=True)):
        is_one = len(prompts) == 1
        own_id, own = (answer_id, params) if is_one else (f"{answer_id}-{index}", _numbered(params, index))
        with renaming({"prompt": name, **scores}):
            planned.append(builder.answer(own_id, each, own, demand, terms, output=output, length=length))
    if body.max_tokens == 0:
        planned = [each._replace(request=replace(each.request, is_prompt_only=True)) for each in planned]
    shown = ShownPrompt(_echoes(request, prompts, encoded) if body.echo else (), body.prompt_logprobs is not None)
    return request.api_request(body, ignored, planned, demand, shown)


def _numbered(params: SamplingParams, index: int) -> SamplingParams:
    """Return the parameters of one of several prompts: equal ones have different answers, and the same ones again."""
    return params if params.seed is None else replace(params, seed=(params.seed + index) % 2**64)


def _params(body: CompletionBody, requested: Requested | None, *, can_score: bool) -> SamplingParams:
    """Return the sampling parameters: with `echo`, those of an answer of no tokens, or with a scored prompt."""
    if body.max_tokens == 0 and not body.echo:
        raise InvalidValue(
            "max_tokens is 0, which only `echo: true` allows; set it to 1 or more, or send echo.", param="max_tokens"
        )
    if body.max_tokens == 0 and body.min_tokens:
        raise InvalidValue(f"min_tokens is {body.min_tokens}; it must be at most max_tokens (0).", param="min_tokens")
    max_tokens = 1 if body.max_tokens == 0 else None if body.max_tokens == UNSET_NUMBER else body.max_tokens
    params = sampling_params(body, requested, max_tokens=max_tokens, logprobs=body.logprobs)
    if body.max_tokens == 0:  # no candidates or beams, since there is nothing to choose from
        params = SamplingParams(
            n=params.n, max_tokens=1, seed=params.seed, logprobs=params.logprobs, prompt_logprobs=params.prompt_logprobs
        )
    if not body.echo or body.logprobs is None:
        return params
    if body.prompt_logprobs not in (None, body.logprobs):
        raise InvalidValue(
            f"prompt_logprobs is {body.prompt_logprobs} and logprobs {body.logprobs}; with echo they must be equal. "
            "Send one of them, or the same number twice.",
            param="prompt_logprobs",
        )
    if not can_score:
        raise UnsupportedParameter(
            "echo with logprobs is not supported on this device, it needs a CPU; leave one of them out.", param="echo"
        )
    return replace(params, prompt_logprobs=body.logprobs)


def _echoes(request: RequestContext, prompts: Sequence[Prompt], encoded: Sequence[EncodedPrompt]) -> tuple[Echo, ...]:
    """Return the prompts as the response shows them: texts as they were given, token ids as their text."""
    tokenizer = request.context.text.tokenizer
    texts = [
        prompt if isinstance(prompt, str) else tokenizer.decode(prompt, skip_special_tokens=False) for prompt in prompts
    ]
    return tuple(
        Echo.of(text, each.token_ids, tokenizer.token_bytes) for text, each in zip(texts, encoded, strict=True)
    )
