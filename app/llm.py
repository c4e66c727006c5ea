"""Offline use: `LLM(model).generate(prompts)` steps the engine in the caller's thread."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import fields
from itertools import count
from threading import RLock
from typing import Self

from tqdm import tqdm

from app.config.settings import ServerConfig, make_config
from app.config.vllm_options import translate
from app.contract.errors import ConfigurationError, NoChatTemplate
from app.contract.events import (
    Embedded,
    EngineEvent,
    FinishReason,
    RequestFailed,
)
from app.contract.requests import EngineRequest, Submit
from app.contract.sampling_params import MAX_SEQUENCES, SamplingParams
from app.engine.build import build_engine
from app.engine.engine import Engine
from app.llm_messages import Message, checked_messages
from app.llm_outputs import (
    EmbeddingOutput,
    EmbeddingRequestOutput,
    Logprob,
    RequestOutput,
    ToolCall,
    apply_events,
    error_of,
    new_outputs,
)
from app.llm_prompts import (
    Prompts,
    as_text_or_ids,
    check_continued,
    each_chat,
    each_prompt,
    naming,
    params_of_each,
    text_of,
)
from app.runtime.clock import monotonic
from app.text.answer.answer_demand import AnswerDemand, Requested
from app.text.answer.answer_plan import AnswerPlan
from app.text.answer.parsed import call_id, client_reason, parse_whole
from app.text.answer.tool_use import NO_TOOLS, ToolUse, choose_tools
from app.text.entry.chat_prompt import ChatPrompt, EncodedPrompt
from app.text.entry.opened_model import OpenedModel
from app.text.entry.request_builder import RequestBuilder, Terms
from app.text.grammar.cache import GrammarCache
from app.text.template.chat_template import RenderOptions
from app.text.template.template_variables import check_names, with_both_switches
from app.text.tokens.tokenizer import Tokenizer

_log = logging.getLogger("quire")


class LLM:
    """A model in this process, without a server. Its methods block until all tokens are there; threads take turns.

    `settings` are named as in the settings reference (`max_model_len=2048`, `num_kv_blocks=512`, ...); keywords of
    vLLM's `LLM` are accepted, with a warning in the log where they act otherwise (docs/reference/vllm.md). `itl_target`
    is off by default, because single tokens are not streamed. At the end of a `with` block the model is dropped. All
    errors are `app.QuireError`s.

    Raises:
        ConfigurationError: an unknown setting or a bad value.
        ModelRefused: the model cannot be loaded.
        CannotStart: there is not enough memory.
    """

    def __init__(self, model: str = "guide", dtype: str = "auto", **settings: object) -> None:
        values, notes = translate({"model": model, "dtype": dtype, **settings})
        values["itl_target"] = values.get("itl_target") or 0.0
        for note in notes:
            _log.warning(note)
        for item in fields(ServerConfig):
            if item.name in values:
                raise ConfigurationError(
                    f"{item.name} is a setting of the server; LLM accepts those of model, sampling, cache, scheduler.",
                    param=item.name,
                )
        self.config = make_config(values)
        opened = OpenedModel.open(self.config.model)
        self._text = opened.text
        self.tokenizer = self._text.tokenizer
        self._grammars = GrammarCache()
        self._engine: Engine | None = build_engine(self.config, model=opened, grammars=self._grammars)
        self._ids = count(1)
        self._turn = RLock()  # of the threads that call; each batch runs to its end

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def generate(
        self,
        prompts: Prompts,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Complete one prompt or many: texts, token id lists, `{"prompt": text}` or `{"prompt_token_ids": ids}`.

        The results are in the order of the prompts. Without `sampling_params` a completion has up to
        `default_max_tokens`, or 16; `SamplingParams` that say no `max_tokens` always have 16, as vLLM's do.

        A model that was trained only on its chat template, such as `guide`, answers a text as a user message.

        Raises:
            RequestError: a prompt or parameter is invalid; nothing was generated.
            QueueTimeout: a request waited longer than `queue_timeout`.
            EngineFailed: the engine failed while it processed a request.
        """
        batch = each_prompt(prompts)
        encoded = []
        for number, prompt in enumerate(batch, 1):
            with naming(number, len(batch)):
                encoded.append(self._builder.encode_for_completion(as_text_or_ids(prompt)))
        params = self._unnamed() if sampling_params is None else sampling_params
        return self._run(encoded, [text_of(prompt) for prompt in batch], params, use_tqdm)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, object] | None = None,
        tools: Sequence[Mapping[str, object]] | None = None,
        tool_choice: str | Mapping[str, object] = "auto",
        parallel_tool_calls: bool = True,
    ) -> list[RequestOutput]:
        """Answer one conversation or many, rendered with the model's chat template.

        Without `sampling_params`, answers may be as long as `default_max_tokens`, else the context, allows; those that
        say no `max_tokens` have 16. Messages, `tools`, `tool_choice` and
        `parallel_tool_calls` are those of OpenAI's API; `chat_template_kwargs` are variables of the template.
        `continue_final_message` continues the last message, of the assistant, with `add_generation_prompt=False`.
        The results have the rendered text as `prompt`.

        Raises:
            NoChatTemplate: the model has none.
            RequestError, QueueTimeout, EngineFailed: see `generate`.
        """
        template = self._text.chat_template
        if template is None:
            raise NoChatTemplate(
                f"The model {self.engine.model_info.name} has no chat template; use generate, or set chat_template."
            )
        many = each_chat(messages)
        use = choose_tools(
            None if tools is None else list(tools), tool_choice, parallel_tool_calls, self._text.answers.calls
        )
        check_names(chat_template_kwargs or {}, self._text.tokenizer)
        check_continued(continue_final_message, add_generation_prompt=add_generation_prompt)
        variables = with_both_switches(chat_template_kwargs or {})
        options = RenderOptions(add_generation_prompt, continue_final_message, variables)
        max_tokens = self._builder.model.max_model_len
        checked = [checked_messages(each, template.tool_source) for each in many]
        chats = [ChatPrompt(self._text, template, each, options, use, max_tokens) for each in checked]
        encoded = [chat.encode() for chat in chats]
        texts = [self.tokenizer.decode(each.token_ids, skip_special_tokens=False) for each in encoded]
        return self._run(encoded, texts, sampling_params or SamplingParams(max_tokens=None), use_tqdm, use)

    def beam_search(
        self,
        prompts: Prompts,
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

    def embed(
        self,
        prompts: Prompts,
        *,
        pooling: str | None = None,
        dimensions: int | None = None,
        normalize: bool = True,
        use_tqdm: bool = False,
    ) -> list[EmbeddingRequestOutput]:
        """Return a vector for each prompt: its pooled hidden states, `mean` (default, unless the model says) or `last`.

        The vectors are in `outputs.embedding` of the results. They are cut to `dimensions` numbers, then scaled to
        length 1 with `normalize`. The same prompt has the same bits in any batch. Prompts are given as for `generate`,
        but a text is never made a user message.

        Raises:
            RequestError: a prompt or parameter is invalid, or the device makes no embeddings.
            EngineFailed: the engine failed while it processed a prompt.
        """
        builder, terms, batch = self._builder, self._terms(), each_prompt(prompts)
        how = builder.pooling(pooling, dimensions, is_normalized=normalize)
        encoded = [builder.encode(as_text_or_ids(each)) for each in batch]
        requests = [builder.pooled(self._new_id(), each, how, terms) for each in encoded]
        found: dict[str, EngineEvent] = {}
        with (
            tqdm(total=len(requests), desc="embedding", unit="prompt", disable=not use_tqdm) as bar,
            closing(self._events_of(requests)) as turns,
        ):
            for events in turns:
                found |= {event.request_id: event for event in events}
                bar.update(len(events))
        results = []
        for request in requests:
            event = found[request.id]
            if isinstance(event, RequestFailed):
                raise error_of(event.error)
            assert isinstance(event, Embedded), "a pooled request has one event"
            vector = EmbeddingOutput(array("f", event.vector).tolist())
            results.append(EmbeddingRequestOutput(request.id, list(request.prompt_token_ids), vector))
        return results

    def score_prompt(
        self,
        prompts: Prompts,
        num_top: int = 0,
        use_tqdm: bool = False,
    ) -> list[list[dict[int, Logprob] | None]]:
        """Score each token of each prompt: {token id: Logprob}, None for the first token.

        A dict has the prompt's token and the `num_top` most likely ones in its place, at most 20. The same prompt has
        the same bits in any batch. Prompts are given as for `embed`.

        Raises:
            RequestError: a prompt or `num_top` is invalid, a prompt is too long, or the device scores no prompts.
            EngineFailed: the engine failed while it processed a prompt.
        """
        batch = each_prompt(prompts)
        encoded = [self._builder.encode(as_text_or_ids(each)) for each in batch]
        params = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=num_top)
        outputs = self._run(encoded, [None] * len(encoded), params, use_tqdm)
        return [output.prompt_logprobs or [] for output in outputs]

    def _events_of(self, requests: Sequence[EngineRequest]) -> Generator[Sequence[EngineEvent]]:
        """Run requests to their ends, and yield the events of each turn."""
        commands = [Submit(request) for request in requests]
        with self._turn:
            try:
                while commands or self.engine.has_ready_work:
                    yield self.engine.turn(commands, monotonic()).events
                    commands = []
            finally:  # an interrupt (Ctrl-C) must not leave unfinished requests in the engine
                for request in requests:
                    self.engine.abort(request.id, monotonic())

    def get_tokenizer(self) -> Tokenizer:
        """Return the model's tokenizer, with `encode` and `decode`."""
        return self.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """Return parameters with the model's defaults."""
        return self._unnamed().with_defaults(self.engine.model_info.defaults)

    def _unnamed(self) -> SamplingParams:
        """Return the parameters of completions for which none are given."""
        has_default = self.engine.model_info.defaults.max_tokens is not None
        return SamplingParams(max_tokens=None) if has_default else SamplingParams()

    def close(self) -> None:
        """Drop the engine and its memory; the object cannot be used afterwards. Idempotent."""
        with self._turn:
            self._engine = None

    @property
    def engine(self) -> Engine:
        """The engine.

        Raises:
            ConfigurationError: it was closed.
        """
        if self._engine is None:
            raise ConfigurationError("this LLM was closed, and its model dropped; make another one with LLM(...)")
        return self._engine

    @property
    def _builder(self) -> RequestBuilder:
        return RequestBuilder(self._text, self.engine.model_info)

    def _terms(self) -> Terms:
        return Terms(arrival_time=monotonic(), queue_timeout=self.config.scheduler.queue_timeout)

    def _new_id(self) -> str:
        return f"llm-{next(self._ids)}"

    def _run(
        self,
        encoded: Sequence[EncodedPrompt],
        texts: Sequence[str | None],
        params: SamplingParams | Sequence[SamplingParams] | None,
        use_tqdm: bool,
        tools: ToolUse = NO_TOOLS,
    ) -> list[RequestOutput]:
        """Return the answers to prompts, which may or must call `tools`."""
        each, builder, terms = params_of_each(params, len(encoded)), self._builder, self._terms()
        different = {id(one): one for one in each}  # mostly all prompts have the same parameters
        demands = {key: self._demand(one, tools) for key, one in different.items()}
        planned = []
        for number, (prompt, chosen) in enumerate(zip(encoded, each, strict=True), 1):
            with naming(number, len(encoded)):
                planned.append(builder.answer(self._new_id(), prompt, chosen, demands[id(chosen)], terms))
        outputs = {
            request.id: RequestOutput(request.id, text, list(request.prompt_token_ids), new_outputs(request.params))
            for (request, _), text in zip(planned, texts, strict=True)
        }
        failures: list[RequestFailed] = []
        token_bytes = self.tokenizer.token_bytes
        with ExitStack() as open_until_end:
            for request, _ in planned:
                if request.grammar is not None:
                    open_until_end.callback(self._grammars.lease(request.grammar).release)
            bar = open_until_end.enter_context(
                tqdm(total=len(planned), desc="generating", unit="request", disable=not use_tqdm)
            )
            for events in open_until_end.enter_context(closing(self._events_of([request for request, _ in planned]))):
                failures += apply_events(events, outputs, bar, token_bytes)
        if failures:
            raise error_of(failures[0].error)
        for request, plan in planned:
            if plan is not None:
                _read_answers(outputs[request.id], plan)
        return list(outputs.values())

    def _demand(self, params: SamplingParams, tools: ToolUse) -> AnswerDemand:
        """Return the demand that these parameters make on answers."""
        outputs = params.structured_outputs
        requested = None if outputs is None else Requested(outputs, "structured_outputs")
        return AnswerDemand(self._text.answers, requested, tools)


def _read_answers(result: RequestOutput, plan: AnswerPlan) -> None:
    """Separate the reasoning and the calls of answers to a chat from their text."""
    for output in result.outputs:
        parser = plan.new_parser()
        assert parser is not None, "there is a plan where something is parsed"
        whole = parse_whole(parser, output.text)
        output.text, output.reasoning = whole.text, whole.reasoning
        output.tool_calls = [
            ToolCall(call_id(result.request_id, output.index, piece.call), piece.name, piece.arguments)
            for piece in whole.calls
        ]
        if output.finish_reason is not None:
            output.finish_reason = str(client_reason(FinishReason(output.finish_reason), parser))
