"""Turns a request body into an engine request: the part that chat and completions share."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeVar

from starlette.requests import Request

from app.api.accounts import Sender
from app.api.context import ApiContext, context_of
from app.api.json_body import parse_object, read_body
from app.api.schemas import SamplingBody, StreamOptions, read_fields
from app.contract.admission import admit, max_output_tokens, too_long
from app.contract.engine_status import ModelInfo
from app.contract.errors import RequestError
from app.contract.overload_levels import effects
from app.contract.requests import EngineRequest
from app.contract.sampling_params import MAX_TOKENS, SamplingParams
from app.runtime.clock import monotonic
from app.runtime.gc_tuning import trim_heap
from app.streaming.flow.slow_reader import SlowReader
from app.streaming.openai_shapes import TokenBytes

MAX_SMALL_BYTES = 64 * 2**10  # of a body: about 20 ms of work
Body = TypeVar("Body", bound=SamplingBody)


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """A checked and tokenized request, and the values that its response needs.

    `model` is the served name, `created` Unix seconds, `ignored` names the unknown fields of the body. `token_bytes`
    returns the bytes of a token.
    """

    request: EngineRequest
    model: str
    created: int
    stream: bool
    include_usage: bool
    ignored: tuple[str, ...]
    token_bytes: TokenBytes
    slow_reader: SlowReader = SlowReader.PAUSE
    has_usage_in_chunks: bool = False


@dataclass(frozen=True, slots=True)
class RequestContext:
    """A body, its sender, and the server's state at the `time` when the body was received.

    With `always_streams`, which the transport sets, `stream` is true without the body's field. `brownout_max_tokens`
    limits requests without a limit of their own while the server is under load.
    """

    body: bytes
    sender: Sender
    always_streams: bool
    context: ApiContext
    model_info: ModelInfo
    time: float
    brownout_max_tokens: int | None

    def read(self, kind: type[Body]) -> tuple[Body, tuple[str, ...]]:
        """Return the body's fields and the names of the ignored ones.

        Raises:
            JsonInvalid, InvalidValue, UnsupportedParameter: see `parse_object` and `read_fields`.
        """
        fields = parse_object(self.body)
        if self.always_streams:
            fields["stream"] = True
        return read_fields(fields, kind, is_strict=self.context.config.server.strict)

    def check_num_chars(self, num_chars: int) -> None:
        """Reject a text that certainly has too many tokens, before it is tokenized.

        Raises:
            ContextLengthExceeded: the text would not fit even if it consisted of the longest tokens only.
        """
        max_model_len = self.model_info.max_model_len
        if num_chars > max_model_len * self.context.text.tokenizer.max_token_chars:
            raise too_long(max_model_len, f"The prompt has {num_chars} characters, more than fit")

    def engine_request(
        self,
        id_prefix: str,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        body: SamplingBody,
        ignored: tuple[str, ...],
        *,
        default_max_tokens: int | None = None,
    ) -> ApiRequest:
        """Return the request, if the model can serve it; its id is 128 random bits.

        Without `max_tokens` it may generate as many tokens as fit, at most `default_max_tokens`, and at most the
        output tokens that a single request may have.

        Raises:
            InvalidValue, ContextLengthExceeded, KVCapacityExceeded: see `admit` and `max_output_tokens`.
        """
        max_output = max_output_tokens(params)
        resolved = admit(prompt_token_ids, params, self.model_info)
        if params.max_tokens is None:
            resolved = _limit_max_tokens(resolved, default_max_tokens, self.brownout_max_tokens, max_output)
        queue_timeout = body.queue_timeout
        if queue_timeout is None:
            queue_timeout = self.context.config.scheduler.queue_timeout
        options = body.stream_options or StreamOptions()
        include_usage = bool(options.include_usage)
        return ApiRequest(
            EngineRequest(
                id=f"{id_prefix}-{secrets.token_hex(16)}",
                prompt_token_ids=tuple(prompt_token_ids),
                params=resolved,
                arrival_time=self.time,
                start_deadline=self.time + queue_timeout if queue_timeout else None,
                deadline=None if body.timeout is None else self.time + body.timeout,
                priority=body.priority or 0,
                tenant=self.sender.tenant,
                account=self.sender.account,
                cache_salt=body.cache_salt,
            ),
            model=self.context.model_name,
            created=int(time.time()),
            stream=bool(body.stream),
            include_usage=include_usage,
            ignored=ignored,
            token_bytes=self.context.text.tokenizer.token_bytes,
            slow_reader=SlowReader(options.slow_reader or SlowReader.PAUSE),
            has_usage_in_chunks=include_usage and bool(options.continuous_usage_stats),
        )


Parser = Callable[[RequestContext], ApiRequest]
"""Checks a body of one route, and tokenizes its prompt. Called on a thread."""


async def parse_post(request: Request, parser: Parser) -> ApiRequest:
    """Read and parse the body of a POST (see `read_body` and `parse`). Cancel-safe."""
    context = context_of(request)
    body = await read_body(request, context.config.server.max_request_bytes)
    return await parse(body, context, parser, context.keys.sender_of(request))


async def parse(
    body: bytes, context: ApiContext, parser: Parser, sender: Sender, *, always_streams: bool = False
) -> ApiRequest:
    """Call `parser` on a thread to turn a body into a request. Cancel-safe.

    Raises:
        RequestError: the body is rejected; the error names the field.
        ModelLoading, EngineFailed: the engine has no model.
        Overloaded: too many requests are being parsed.
    """
    engine = context.engine
    max_tokens = effects(engine.stats().brownout_level).default_max_tokens
    request = RequestContext(body, sender, always_streams, context, engine.model_info(), monotonic(), max_tokens)
    if len(body) <= MAX_SMALL_BYTES:
        return await context.threads.run(parser, request, account=sender.account)
    return await context.long_thread.run(_parse_long, parser, request, account=sender.account)


def _parse_long(parser: Parser, request: RequestContext) -> ApiRequest:
    try:
        return parser(request)
    finally:
        trim_heap()


def _limit_max_tokens(params: SamplingParams, *limits: int | None) -> SamplingParams:
    """Return `params` with a max_tokens of at most each of `limits`, but at least min_tokens."""
    assert params.max_tokens is not None
    lowest = min(params.max_tokens, *(limit for limit in limits if limit is not None), MAX_TOKENS)
    return replace(params, max_tokens=max(lowest, params.min_tokens))


@contextmanager
def renaming(fields: Mapping[str, str]) -> Iterator[None]:
    """Rename the fields in errors: `fields` maps our names to those that the client sent."""
    try:
        yield
    except RequestError as error:
        ours = error.param or ""
        error.param = fields.get(ours, error.param)
        if error.param != ours and error.message.startswith(f"{ours} "):
            error.message = f"{error.param}{error.message.removeprefix(ours)}"
        raise
