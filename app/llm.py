"""Offline use: `LLM(model).generate(prompts)` steps the engine in the caller's thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from itertools import count
from operator import index

from tqdm import tqdm

from app.checkpoint.inspection import open_files
from app.checkpoint.names import resolve
from app.config.settings import ServerConfig, make_config
from app.contract.admission import admit
from app.contract.errors import (
    ConfigurationError,
    ContextLengthExceeded,
    EngineFailed,
    ErrorInfo,
    InvalidValue,
    KVCapacityExceeded,
    NoChatTemplate,
    QueueTimeout,
    QuireError,
)
from app.contract.events import EngineEvent, Finished, Progress, RequestFailed, TokenDelta, Usage
from app.contract.packed_logprobs import TokenLogprobs
from app.contract.requests import EngineRequest, Submit
from app.contract.sampling_params import MAX_SEQUENCES, SamplingParams
from app.engine.build import build_engine
from app.runtime.clock import monotonic
from app.text.frontend import TextFrontend

Prompt = str | Sequence[int] | Mapping[str, Sequence[int]]
Message = Mapping[str, object]

# Errors of the engine that are caused by the request or by a timeout, not by a failure.
_REJECTIONS = (QueueTimeout, KVCapacityExceeded, ContextLengthExceeded, InvalidValue)


@dataclass(frozen=True, slots=True)
class Logprob:
    """Log-probability of one token, its rank (1 = most likely) and its text."""

    logprob: float
    rank: int
    decoded_token: str


@dataclass(slots=True)
class CompletionOutput:
    """One completion. With `logprobs` set in the parameters, `logprobs` has one dict per token, {token id: Logprob}.

    Tokens that ended the completion are in `logprobs`, but not in `token_ids`.
    """

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    logprobs: list[dict[int, Logprob]] | None = None


@dataclass(slots=True)
class RequestOutput:
    """One prompt and its `n` completions; `prompt` is None if token ids were given.

    With `best_of` and beam search the completions are sorted by score, best first. `usage` counts the tokens of all
    completions.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    usage: Usage | None = None


class LLM:
    """A model in this process, without a server. Use it from one thread; its methods block until all tokens are there.

    `settings` are named as in the settings reference (`max_model_len=2048`, `num_kv_blocks=512`, ...). `itl_target` is
    off by default, because single tokens are not streamed.

    Raises:
        ConfigurationError: an unknown setting or a bad value.
        ModelRefused: the model cannot be loaded.
        CannotStart: there is not enough memory.
    """

    def __init__(self, model: str = "guide", dtype: str = "auto", **settings: object) -> None:
        settings["itl_target"] = settings.get("itl_target") or 0.0
        for item in fields(ServerConfig):
            if item.name in settings:
                raise ConfigurationError(
                    f"{item.name} is a setting of the server; LLM accepts the settings of model, cache and scheduler.",
                    param=item.name,
                )
        self.config = make_config({"model": model, "dtype": dtype, **settings})
        # config.json first: its absence is the better message for a folder that lacks the tokenizer too.
        files = open_files(resolve(model, self.config.model.revision), with_weights=False)
        self._text = TextFrontend.load(self.config.model, files.text_source)
        self.tokenizer = self._text.tokenizer
        self.engine = build_engine(self.config, tokenizer=self.tokenizer)
        self._ids = count(1)

    def generate(
        self,
        prompts: str | Mapping[str, Sequence[int]] | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Complete one prompt or many (texts, token id lists, or `{"prompt_token_ids": ids}`); results in their order.

        A model that was trained only on its chat template, such as `guide`, answers a text as a user message.

        Raises:
            RequestError: a prompt or parameter is invalid; nothing was generated.
            QueueTimeout: a request waited longer than `queue_timeout`.
            EngineFailed: the engine failed while it processed a request.
        """
        batch: list[Prompt] = [prompts] if isinstance(prompts, (str, Mapping)) else list(prompts)
        encoded = [self._encode(prompt) for prompt in batch]
        texts = [prompt if isinstance(prompt, str) else None for prompt in batch]
        return self._run(encoded, texts, params, use_tqdm)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Answer one conversation or many, rendered with the model's chat template.

        Without `params`, answers may be as long as the context allows.

        Raises:
            NoChatTemplate: the model has none.
            RequestError, QueueTimeout, EngineFailed: see `generate`.
        """
        template = self._text.chat_template
        if template is None:
            raise NoChatTemplate(
                f"The model {self.engine.model_info.name} has no chat template; use generate, or set chat_template."
            )
        single = [each for each in messages if isinstance(each, Mapping)]
        many = [single] if single else [each for each in messages if not isinstance(each, Mapping)]
        encoded = [template.render([dict(message) for message in each]) for each in many]
        return self._run(encoded, [None] * len(encoded), params or SamplingParams(max_tokens=None), use_tqdm)

    def beam_search(
        self,
        prompts: str | Mapping[str, Sequence[int]] | Sequence[Prompt],
        beam_width: int = 4,
        max_tokens: int = 16,
        n: int | None = None,
        length_penalty: float = 1.0,
        early_stopping: bool | str = False,
        *,
        min_tokens: int = 0,
        ignore_eos: bool = False,
        stop_token_ids: Sequence[int] | None = None,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Search for the `n` most likely completions of each prompt (default `beam_width`), best first.

        The parameters are those of `SamplingParams`.

        Raises:
            RequestError, QueueTimeout, EngineFailed: see `generate`.
        """
        params = SamplingParams(
            n=n or max(1, min(beam_width, MAX_SEQUENCES)),
            use_beam_search=True,
            beam_width=beam_width,
            max_tokens=max_tokens,
            length_penalty=length_penalty,
            early_stopping=early_stopping,
            min_tokens=min_tokens,
            ignore_eos=ignore_eos,
            stop_token_ids=stop_token_ids,
        )
        return self.generate(prompts, params, use_tqdm)

    def close(self) -> None:
        """Drop the engine and its memory; the object cannot be used afterwards. Idempotent."""
        with suppress(AttributeError):
            del self.engine

    def _run(
        self,
        encoded: Sequence[Sequence[int]],
        texts: Sequence[str | None],
        params: SamplingParams | Sequence[SamplingParams] | None,
        use_tqdm: bool,
    ) -> list[RequestOutput]:
        each = _per_prompt(params, len(encoded))
        requests = [self._request(ids, chosen) for ids, chosen in zip(encoded, each, strict=True)]
        outputs = {
            request.id: RequestOutput(request.id, text, list(request.prompt_token_ids), _new_outputs(request.params))
            for request, text in zip(requests, texts, strict=True)
        }
        commands = [Submit(request) for request in requests]
        failures: list[RequestFailed] = []
        token_bytes = self.tokenizer.token_bytes
        with tqdm(total=len(requests), desc="generating", unit="request", disable=not use_tqdm) as bar:
            try:
                while commands or self.engine.has_ready_work:
                    report = self.engine.turn(commands, monotonic())
                    commands = []
                    failures += _apply(report.events, outputs, bar, token_bytes)
            finally:  # an interrupt (Ctrl-C) must not leave unfinished requests in the engine
                for request in requests:
                    self.engine.abort(request.id, monotonic())
        if failures:
            raise _error_of(failures[0].error)
        return list(outputs.values())

    def _request(self, prompt_token_ids: Sequence[int], params: SamplingParams) -> EngineRequest:
        resolved = admit(prompt_token_ids, params, self.engine.model_info)
        now, queue_timeout = monotonic(), self.config.scheduler.queue_timeout
        start_deadline = now + queue_timeout if queue_timeout else None
        return EngineRequest(f"llm-{next(self._ids)}", tuple(prompt_token_ids), resolved, now, start_deadline)

    def _encode(self, prompt: Prompt) -> Sequence[int]:
        if isinstance(prompt, str):
            return [*self._text.chat_prefix(prompt), *self.tokenizer.encode(prompt)]
        if isinstance(prompt, Mapping):
            if set(prompt) != {"prompt_token_ids"}:
                raise InvalidValue(
                    f"A prompt has the keys {sorted(prompt)}; it must have prompt_token_ids.", param="prompt"
                )
            prompt = prompt["prompt_token_ids"]
        try:
            return [index(token_id) for token_id in prompt]
        except TypeError:
            raise InvalidValue(
                f"A prompt is {str(prompt)[:80]}; it must be a text, a list of token ids, or "
                '{"prompt_token_ids": [...]}.',
                param="prompt",
            ) from None


def _per_prompt(params: SamplingParams | Sequence[SamplingParams] | None, num_prompts: int) -> Sequence[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * num_prompts
    if len(params) != num_prompts:
        raise InvalidValue(
            f"{len(params)} params were given for {num_prompts} prompts; give one, or one per prompt.", param="params"
        )
    return params


def _new_outputs(params: SamplingParams) -> list[CompletionOutput]:
    return [CompletionOutput(choice, logprobs=None if params.logprobs is None else []) for choice in range(params.n)]


def _apply(
    events: Iterable[EngineEvent],
    outputs: Mapping[str, RequestOutput],
    bar: tqdm,
    token_bytes: Callable[[int], bytes],
) -> list[RequestFailed]:
    """Add events to the outputs they belong to; return the failures among them."""
    failures = []
    for event in events:
        if isinstance(event, RequestFailed):
            failures.append(event)
            continue
        assert not isinstance(event, Progress), "an engine without a server sends no progress"
        request = outputs[event.request_id]
        output = request.outputs[event.choice]
        if isinstance(event, TokenDelta):
            output.text += event.text
            output.token_ids += event.token_ids
            if output.logprobs is not None:
                output.logprobs += [_logprobs(entry, token_bytes) for entry in event.logprobs or ()]
        elif isinstance(event, Finished):
            output.finish_reason = str(event.reason)
            num_before = 0 if request.usage is None else request.usage.completion_tokens
            request.usage = replace(event.usage, completion_tokens=num_before + event.usage.completion_tokens)
            if all(each.finish_reason for each in request.outputs):
                bar.update()
    return failures


def _error_of(info: ErrorInfo) -> QuireError:
    kind = next((kind for kind in _REJECTIONS if kind.code == info.code), EngineFailed)
    return kind(info.message, param=info.param)


def _logprobs(entry: TokenLogprobs, token_bytes: Callable[[int], bytes]) -> dict[int, Logprob]:
    best = zip(entry.top_token_ids, entry.top_logprobs, range(1, len(entry.top_logprobs) + 1), strict=True)
    return {
        token_id: Logprob(logprob, rank, token_bytes(token_id).decode("utf-8", "replace"))
        for token_id, logprob, rank in (*best, (entry.token_id, entry.logprob, entry.rank))
    }
