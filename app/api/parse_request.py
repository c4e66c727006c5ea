"""From a request body to an engine request: the part that chat and completions share. Runs in the executor."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import MappingProxyType
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
from app.runtime.gc_tuning import give_back
from app.streaming.openai_shapes import TokenBytes
from app.streaming.streams import SlowReader
from app.text.frontend import TextFrontend
from app.text.tokenizer import Tokenizer

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
    """A body, and what was true when it came; `fixed` fields take the place of the body's.

    `sender` is who sent it, `queue_timeout` the server's default in seconds;
    `brownout_max_tokens` bounds the answers to requests that name no limit, while the server is under pressure.
    """

    body: bytes
    model_info: ModelInfo
    is_strict: bool
    time: float
    sender: Sender = NOBODY
    queue_timeout: float | None = None
    brownout_max_tokens: int | None = None
    fixed: Mapping[str, object] = field(default_factory=dict)

    @classmethod
    def of(cls, body: bytes, context: ApiContext, sender: Sender, fixed: Mapping[str, object]) -> RequestContext:
        """Return the arrival of `body` now.

        Raises:
            ModelLoading, EngineFailed: there is no model (yet, any more).
        """
        config, engine = context.config, context.engine
        return cls(
            body,
            engine.model_info(),
            config.server.strict,
            monotonic(),
            sender,
            config.scheduler.queue_timeout,
            effects(engine.stats().brownout_level).default_max_tokens,
            fixed,
        )

    def read(self, kind: type[Body]) -> tuple[Body, tuple[str, ...]]:
        """Return the body's fields and the names of the ignored ones.

        Raises:
            JsonInvalid, InvalidValue, UnsupportedParameter: see `parse_object` and `read_fields`.
        """
        return read_fields({**parse_object(self.body), **self.fixed}, kind, is_strict=self.is_strict)

    def check_num_chars(self, num_chars: int, tokenizer: Tokenizer) -> None:
        """Refuse a text that cannot fit however few tokens it makes, before it costs the time to make them.

        Raises:
            ContextLengthExceeded: it would not fit even if it were made of the longest tokens alone.
        """
        max_model_len = self.model_info.max_model_len
        if num_chars > max_model_len * tokenizer.max_piece_chars:
            raise too_long(max_model_len, f"The prompt has {num_chars} characters, more than fit")

    def request(
        self,
        id_prefix: str,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        body: SamplingBody,
        *,
        default_max_tokens: int | None = None,
    ) -> EngineRequest:
        """Return the engine request, if the model can take it; its id is 128 random bits.

        Without a `max_tokens` of its own an answer gets what fits, at most `default_max_tokens`, and what one request
        may make.

        Raises:
            InvalidValue, ContextLengthExceeded, KVCapacityExceeded: see `admit` and `max_output_tokens`.
        """
        most = max_output_tokens(params)
        resolved = admit(prompt_token_ids, params, self.model_info)
        if params.max_tokens is None:
            resolved = _cut(resolved, default_max_tokens, self.brownout_max_tokens, most)
        queue_timeout = self.queue_timeout if body.queue_timeout is None else body.queue_timeout
        return EngineRequest(
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
        )


Check = Callable[[RequestContext, ApiContext, TextFrontend], ApiRequest]


async def prepare(
    body: bytes,
    context: ApiContext,
    check: Check,
    sender: Sender,
    fixed: Mapping[str, object] = MappingProxyType({}),
) -> ApiRequest:
    """Let `check` turn a body into a prepared request, in the executor. Cancel-safe.

    `fixed` fields hold whatever the body says of them. Long bodies wait for a thread of their own, so that short ones
    never wait for them.

    Raises:
        RequestError: the body is refused; says why and names the field.
        ModelLoading, EngineFailed: there is no model (yet, any more).
        Overloaded: too many requests are being prepared.
    """
    text = context.text()
    arrival = RequestContext.of(body, context, sender, fixed)
    if len(body) <= MAX_SMALL_BYTES:
        return await context.background.run(check, arrival, context, text, account=sender.account)
    return await context.long_background.run(_check_long, check, arrival, context, text, account=sender.account)


def _check_long(check: Check, arrival: RequestContext, context: ApiContext, text: TextFrontend) -> ApiRequest:
    try:
        return check(arrival, context, text)
    finally:
        give_back()


def prepared(
    request: EngineRequest, model: str, body: SamplingBody, ignored: tuple[str, ...], tokenizer: Tokenizer
) -> ApiRequest:
    """Return the finished preparation of `request`."""
    options = body.stream_options
    include_usage = bool(options and options.include_usage)
    return ApiRequest(
        request=request,
        model=model,
        created=int(time.time()),
        stream=bool(body.stream),
        include_usage=include_usage,
        ignored=ignored,
        token_bytes=tokenizer.token_bytes,
        slow_reader=SlowReader((options and options.slow_reader) or SlowReader.PAUSE),
        has_usage_in_chunks=include_usage and bool(options and options.continuous_usage_stats),
    )


def _cut(params: SamplingParams, *limits: int | None) -> SamplingParams:
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
