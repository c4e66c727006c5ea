"""Reads request bodies on threads, and says what requests have of them, of their senders and of the settings."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from starlette.requests import Request

from app.api.body.any_body import AnyBody
from app.api.body.json_body import parse_object, read_body
from app.api.body.schemas import SamplingBody, StreamOptions, read_fields
from app.api.body.structured_output import lease, naming
from app.api.http.accounts import Sender
from app.api.http.byte_shares import Receiving
from app.api.http.context import ApiContext, context_of
from app.api.wire.api_request import ApiRequest
from app.api.wire.shown_prompt import ShownPrompt
from app.contract.brownout_effects import effects
from app.contract.engine_status import ModelInfo
from app.contract.errors import RequestError, UnsupportedParameter
from app.runtime.clock import monotonic
from app.streaming.flow.slow_reader import SlowReader
from app.text.answer.answer_demand import AnswerDemand, Requested
from app.text.answer.tool_use import NO_TOOLS, ToolUse
from app.text.entry.request_builder import PlannedRequest, RequestBuilder, Terms

_OTHER_LIMIT = "max_completion_tokens"  # means the same as max_tokens, wherever that stands in a message
MAX_SMALL_BYTES = 64 * 2**10  # of a body: about 20 ms of work
Body = TypeVar("Body", bound=AnyBody)
Given = TypeVar("Given")
Result = TypeVar("Result")


class _NeedsLongThread(Exception):
    """A short body brings more to read than short bodies have."""


@dataclass(frozen=True, slots=True)
class RequestContext:
    """A body, its sender, and the server's state at the `time` when the body was received.

    With `always_streams`, which the transport sets, `stream` is true without the body's field. `brownout_max_tokens`
    limits requests without a limit of their own while the server is under load. `is_long` says that it is read on the
    thread for long bodies.
    """

    body: bytes
    sender: Sender
    always_streams: bool
    context: ApiContext
    model_info: ModelInfo
    time: float
    brownout_max_tokens: int | None
    is_long: bool = True

    def note_further(self, num_bytes: int) -> None:
        """Note that so much more is to be read than the body, such as a conversation that it goes on from.

        Call this first: a body that is short, but comes to more than short bodies have, is read again on the thread for
        long ones.
        """
        if not self.is_long and len(self.body) + num_bytes > MAX_SMALL_BYTES:
            raise _NeedsLongThread

    def read(self, kind: type[Body]) -> tuple[Body, tuple[str, ...]]:
        """Return the body's fields and the names of the ignored ones.

        Raises:
            JsonInvalid, InvalidValue, UnsupportedParameter: see `parse_object` and `read_fields`.
        """
        return self.check(parse_object(self.body), kind)

    def check(self, fields: dict[str, object], kind: type[Body]) -> tuple[Body, tuple[str, ...]]:
        """Return the body of parsed fields, and the names of the ignored ones, as `read` does."""
        if self.always_streams:
            fields["stream"] = True
            for name in ("return_token_ids", "prompt_logprobs"):
                if (value := fields.get(name)) is not None and value is not False:
                    raise UnsupportedParameter(
                        f"{name} is not supported on quire.v1; leave it out, or use HTTP.", param=name
                    )
        return read_fields(fields, kind, is_strict=self.context.config.server.strict)

    @property
    def builder(self) -> RequestBuilder:
        """Builds requests of the engine as this server accepts them."""
        context = self.context
        return RequestBuilder(
            context.text, self.model_info, context.config.server.clamp_max_tokens, self.brownout_max_tokens
        )

    def terms(self, body: SamplingBody | None = None) -> Terms:
        """Return whose the request is, and how long it may take; what no body says, the server does."""
        given = body or SamplingBody()
        of_server = self.context.config.scheduler.queue_timeout
        return Terms(
            arrival_time=self.time,
            queue_timeout=of_server if given.queue_timeout is None else given.queue_timeout,
            timeout=given.timeout,
            priority=given.priority or 0,
            tenant=self.sender.tenant,
            account=self.sender.account,
            cache_salt=given.cache_salt,
        )

    def demand(self, requested: Requested | None, tools: ToolUse = NO_TOOLS) -> AnswerDemand:
        """Return the demand on the answers; errors about their grammar name the client's field, and count."""
        return AnswerDemand(self.context.text.answers, requested, tools, partial(naming, self.context.grammars))

    def api_request(
        self,
        body: SamplingBody,
        ignored: tuple[str, ...],
        planned: Sequence[PlannedRequest],
        demand: AnswerDemand,
        shown: ShownPrompt,
        reasoning_fields: tuple[str, ...] = (),
    ) -> ApiRequest:
        """Return the requests of a body's prompts, one or more, with what their response needs of the body."""
        options = body.stream_options or StreamOptions()
        include_usage = bool(options.include_usage)
        (request, plan), *others = planned
        return ApiRequest(
            request,
            model=self.context.model_name,
            created=int(time.time()),
            stream=bool(body.stream),
            include_usage=include_usage,
            ignored=ignored,
            token_bytes=self.context.text.tokenizer.token_bytes,
            slow_reader=SlowReader(options.slow_reader or SlowReader.PAUSE),
            has_usage_in_chunks=include_usage and bool(options.continuous_usage_stats),
            has_token_ids=bool(body.return_token_ids),
            has_timings=bool(body.timings),
            others=tuple(each.request for each in others),
            answer=plan,
            reasoning_fields=reasoning_fields,
            demand=demand,
            shown=shown,
        )


def new_id(prefix: str) -> str:
    """Return the id of a response: 128 random bits behind a prefix."""
    return f"{prefix}-{secrets.token_hex(16)}"


Parser = Callable[[RequestContext], Result]
"""Checks a body of one route, and tokenizes its prompt. Called on a thread."""


async def read_post(request: Request) -> bytes:
    """Return the body of a POST, of a size that this server takes (see `read_body`). Loop only; cancel-safe."""
    context = context_of(request)
    receiving = Receiving(context.received, context.keys.sender_of(request).account)
    return await read_body(request, context.config.server.max_request_bytes, receiving)


async def parse_post(request: Request, parser: Parser[Result]) -> Result:
    """Read and parse the body of a POST (see `read_post` and `parse`). Cancel-safe."""
    context = context_of(request)
    body = await read_post(request)
    return await parse(body, context, parser, context.keys.sender_of(request))


async def parse(
    body: bytes, context: ApiContext, parser: Parser[Result], sender: Sender, *, always_streams: bool = False
) -> Result:
    """Call `parser` on a thread to turn a body into a request, or into what another route needs. Cancel-safe.

    Raises:
        RequestError: the body is rejected; the error names the field.
        ModelLoading, EngineFailed: the engine has no model.
        Overloaded: too many requests are being parsed.
    """
    engine = context.engine
    max_tokens = effects(engine.brownout_level(sender.account)).default_max_tokens
    request = RequestContext(body, sender, always_streams, context, engine.model_info(), monotonic(), max_tokens)
    if len(body) <= MAX_SMALL_BYTES:
        with suppress(_NeedsLongThread):
            return await on_thread(context, len(body), sender.account, parser, replace(request, is_long=False))
    return await on_thread(context, MAX_SMALL_BYTES + 1, sender.account, parser, request)


async def on_thread(
    context: ApiContext, num_bytes: int, account: str, function: Callable[[Given], Result], given: Given
) -> Result:
    """Call a function of a body of `num_bytes` on a thread; short bodies do not wait for long ones. Cancel-safe.

    Raises:
        Overloaded: too many requests are being parsed.
    """
    if num_bytes <= MAX_SMALL_BYTES:
        return await context.threads.run(function, given, account=account)
    try:
        return await context.long_thread.run(function, given, account=account)
    finally:
        context.heap.note_large()


async def parse_answer(
    body: bytes, context: ApiContext, parser: Parser[ApiRequest], sender: Sender, *, always_streams: bool = False
) -> ApiRequest:
    """Read a body that asks for an answer, as `parse` does, and lease the answer's grammar. Cancel-safe.

    The caller lets the session release the lease, or releases it.

    Raises:
        RequestError, ModelLoading, EngineFailed, Overloaded: see `parse` and `structured_output.lease`.
        Overloaded, RateLimitExceeded, Draining: no request of the sender is accepted now.
    """
    context.engine.check_room(sender.account)
    parsed = await parse(body, context, parser, sender, always_streams=always_streams)
    grammar = parsed.request.grammar
    if grammar is None or parsed.demand is None:
        return parsed
    return replace(parsed, lease=await lease(grammar, parsed.demand, context, sender.account))


@contextmanager
def renaming(fields: Mapping[str, str]) -> Iterator[None]:
    """Rename the fields in errors: `fields` maps our names to those that the client sent."""
    try:
        yield
    except RequestError as error:
        ours = error.param or ""
        error.param = fields.get(ours, error.param)
        if error.param == _OTHER_LIMIT:
            error.message = error.message.replace("max_tokens", _OTHER_LIMIT)
        elif error.param != ours and error.message.startswith(f"{ours} "):
            error.message = f"{error.param}{error.message.removeprefix(ours)}"
        raise
