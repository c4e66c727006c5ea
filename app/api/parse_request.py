"""From a request body to an engine request: the part that chat and completions share."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeVar

from app.api.accounts import NOBODY, Sender
from app.api.context import ApiContext
from app.api.json_body import parse_object
from app.api.schemas import SamplingBody, read_fields
from app.contract.admission import admit, max_output_tokens, too_long
from app.contract.engine_status import ModelInfo
from app.contract.errors import RequestError
from app.contract.overload_levels import effects
from app.contract.requests import EngineRequest
from app.contract.sampling_params import MAX_TOKENS, SamplingParams
from app.runtime.clock import monotonic
from app.runtime.gc_tuning import trim_heap
from app.streaming.openai_shapes import TokenBytes
from app.streaming.streams import SlowReader
from app.text.frontend import TextFrontend

MAX_SMALL_BYTES = 64 * 2**10  # of a body: some 20 ms of work
Body = TypeVar("Body", bound=SamplingBody)


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """A checked and tokenized request, with what its answer needs to know.

    `model` is the served name, `created` Unix seconds, `ignored` names the fields that were unknown. `token_bytes` says
    what a token stands for.
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
    """A body, who sent it, and what was true of the server when it came.

    Where the transport `always_streams`, the body need not ask for it. `brownout_max_tokens` bounds the answers to
    requests that name no limit, while the server is under pressure.
    """

    body: bytes
    sender: Sender
    always_streams: bool
    context: ApiContext
    text: TextFrontend
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
        """Refuse a text that cannot fit however few tokens it makes, before it costs the time to make them.

        Raises:
            ContextLengthExceeded: it would not fit even if it were made of the longest tokens alone.
        """
        max_model_len = self.model_info.max_model_len
        if num_chars > max_model_len * self.text.tokenizer.max_piece_chars:
            raise too_long(max_model_len, f"The prompt has {num_chars} characters, more than fit")

    def request(
        self,
        id_prefix: str,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        body: SamplingBody,
        ignored: tuple[str, ...],
        *,
        default_max_tokens: int | None = None,
    ) -> ApiRequest:
        """Return the request, if the model can take it; its id is 128 random bits.

        Without a `max_tokens` of its own an answer gets what fits, at most `default_max_tokens`, and what one request
        may make.

        Raises:
            InvalidValue, ContextLengthExceeded, KVCapacityExceeded: see `admit` and `max_output_tokens`.
        """
        most = max_output_tokens(params)
        resolved = admit(prompt_token_ids, params, self.model_info)
        if params.max_tokens is None:
            resolved = _bound_max_tokens(resolved, default_max_tokens, self.brownout_max_tokens, most)
        queue_timeout = body.queue_timeout
        if queue_timeout is None:
            queue_timeout = self.context.config.scheduler.queue_timeout
        options = body.stream_options
        include_usage = bool(options and options.include_usage)
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
            token_bytes=self.text.tokenizer.token_bytes,
            slow_reader=SlowReader((options and options.slow_reader) or SlowReader.PAUSE),
            has_usage_in_chunks=include_usage and bool(options and options.continuous_usage_stats),
        )


Parser = Callable[[RequestContext], ApiRequest]
"""Checks a body of one route, and tokenizes its prompt. Runs on a thread."""


async def parse(
    body: bytes, context: ApiContext, parser: Parser, sender: Sender = NOBODY, *, always_streams: bool = False
) -> ApiRequest:
    """Let `parser` turn a body into a request, on a thread. Cancel-safe.

    Raises:
        RequestError: the body is refused; says why and names the field.
        ModelLoading, EngineFailed: there is no model (yet, any more).
        Overloaded: too many requests are being parsed.
    """
    text, engine = context.text.get(), context.engine
    max_tokens = effects(engine.stats().brownout_level).default_max_tokens
    arrival = RequestContext(body, sender, always_streams, context, text, engine.model_info(), monotonic(), max_tokens)
    if len(body) <= MAX_SMALL_BYTES:
        return await context.text.run(parser, arrival, is_long=False, account=sender.account)
    return await context.text.run(_parse_long, parser, arrival, is_long=True, account=sender.account)


def _parse_long(parser: Parser, arrival: RequestContext) -> ApiRequest:
    try:
        return parser(arrival)
    finally:
        trim_heap()


def _bound_max_tokens(params: SamplingParams, *limits: int | None) -> SamplingParams:
    """Return `params` with a max_tokens of at most each of `limits`, but not below what min_tokens asks for."""
    assert params.max_tokens is not None
    lowest = min(params.max_tokens, *(limit for limit in limits if limit is not None), MAX_TOKENS)
    return replace(params, max_tokens=max(lowest, params.min_tokens))


@contextmanager
def named(fields: Mapping[str, str]) -> Iterator[None]:
    """Let errors name the field the client sent: `fields` maps our name to the client's."""
    try:
        yield
    except RequestError as error:
        ours = error.param or ""
        error.param = fields.get(ours, error.param)
        if error.param != ours and error.message.startswith(f"{ours} "):
            error.message = f"{error.param}{error.message.removeprefix(ours)}"
        raise
