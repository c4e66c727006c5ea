"""Offline use: `LLM(model).generate(prompts)` steps the engine in the caller's thread."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import fields, replace
from itertools import count

from tqdm import tqdm

from app.config.settings import ServerConfig, make_config
from app.config.vllm_options import translate
from app.contract.admission import admit
from app.contract.errors import (
    ConfigurationError,
    InvalidValue,
    NoChatTemplate,
    UnsupportedParameter,
)
from app.contract.events import (
    Embedded,
    EngineEvent,
    FinishReason,
    RequestFailed,
)
from app.contract.grammar import Grammar
from app.contract.requests import EngineRequest, Pooling, PoolingKind, Submit
from app.contract.sampling_params import MAX_SEQUENCES, SamplingParams
from app.engine.build import build_engine
from app.llm_messages import Message, checked_messages, text_of_message
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
    Prompt,
    Prompts,
    check_continued,
    each_chat,
    each_prompt,
    params_of_each,
    text_of,
    token_ids_of,
)
from app.runtime.clock import monotonic
from app.text.answer.answer_rules import answer_rules
from app.text.answer.reasoning_start import ReasoningStart, reasoning_start
from app.text.answer.tool_choice import NO_TOOLS, ToolUse, choose_tools
from app.text.answer.whole_answer import call_id, client_reason, parse_whole
from app.text.grammar.cache import GrammarCache
from app.text.opened_model import OpenedModel
from app.text.template.chat_template import RenderOptions
from app.text.template.template_variables import check_names, with_both_switches
from app.text.tokens.tokenizer import Tokenizer

_log = logging.getLogger("quire")


class LLM:
    """A model in this process, without a server. Use it from one thread; its methods block until all tokens are there.

    `settings` are named as in the settings reference (`max_model_len=2048`, `num_kv_blocks=512`, ...); keywords of
    vLLM's `LLM` are accepted, with a warning in the log where they act otherwise (docs/reference/vllm.md). `itl_target`
    is off by default, because single tokens are not streamed.

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
        self.engine = build_engine(self.config, model=opened, grammars=self._grammars)
        self._ids = count(1)

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
        encoded = [self._encode(prompt) for prompt in batch]
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
        if continue_final_message:
            check_continued(many, add_generation_prompt=add_generation_prompt)
        variables = with_both_switches(chat_template_kwargs or {})
        options = RenderOptions(add_generation_prompt, continue_final_message, variables, use.definitions)
        chats = [checked_messages(each) for each in many]
        encoded = [template.render(each, options) for each in chats]
        texts = [self.tokenizer.decode(ids, skip_special_tokens=False) for ids in encoded]
        continued = [text_of_message(each[-1]) if continue_final_message else None for each in chats]
        is_asked_for = template.findings.asks_for_reasoning(variables)
        starts = [
            reasoning_start(self._text.answers.reasoning, ids, self.tokenizer, text, is_asked_for=is_asked_for)
            for ids, text in zip(encoded, continued, strict=True)
        ]
        params = sampling_params or SamplingParams(max_tokens=None)
        results = self._run(encoded, texts, params, use_tqdm, tools=use, starts=starts)
        for result, start in zip(results, starts, strict=True):
            self._parse(result, use, start)
        return results

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
        info, batch = self.engine.model_info, each_prompt(prompts)
        if not info.reads_prompts:
            raise UnsupportedParameter("Embeddings are not supported on this device; they need a CPU.")
        if pooling is not None and pooling not in list(PoolingKind):
            raise InvalidValue(f"pooling is {pooling!r:.40}; it must be mean or last.", param="pooling")
        if dimensions is not None and not 1 <= dimensions <= info.hidden_size:
            raise InvalidValue(
                f"dimensions is {dimensions}; it must be between 1 and {info.hidden_size}.", param="dimensions"
            )
        how = Pooling(info.pooling if pooling is None else PoolingKind(pooling), dimensions, normalize)
        params = SamplingParams(max_tokens=1, temperature=0)
        encoded = [self._encode_plain(each) for each in batch]
        requests = [replace(self._request(ids, params, None), pooling=how) for ids in encoded]
        found: dict[str, EngineEvent] = {}
        with tqdm(total=len(requests), desc="embedding", unit="prompt", disable=not use_tqdm) as bar:
            for events in self._events_of(requests):
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
        """Return what the model says of each token of each prompt: {token id: Logprob}, None for the first token.

        A dict has the prompt's token and the `num_top` most likely ones in its place, at most 20. The same prompt has
        the same bits in any batch. Prompts are given as for `embed`.

        Raises:
            RequestError: a prompt or `num_top` is invalid, a prompt is too long, or the device scores no prompts.
            EngineFailed: the engine failed while it processed a prompt.
        """
        batch = each_prompt(prompts)
        encoded = [self._encode_plain(each) for each in batch]
        params = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=num_top)
        outputs = self._run(encoded, [None] * len(encoded), params, use_tqdm)
        return [output.prompt_logprobs or [] for output in outputs]

    def _events_of(self, requests: Sequence[EngineRequest]) -> Generator[Sequence[EngineEvent]]:
        """Run requests to their ends, and yield the events of each turn."""
        commands = [Submit(request) for request in requests]
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
        with suppress(AttributeError):
            del self.engine

    def _run(
        self,
        encoded: Sequence[Sequence[int]],
        texts: Sequence[str | None],
        params: SamplingParams | Sequence[SamplingParams] | None,
        use_tqdm: bool,
        *,
        tools: ToolUse | None = None,
        starts: Sequence[ReasoningStart | None] | None = None,
    ) -> list[RequestOutput]:
        """Return the answers to prompts; those of chats have `tools`, and `starts` say how their reasoning begins."""
        each = params_of_each(params, len(encoded))
        different = {id(one): one for one in each}  # mostly all prompts have the same parameters
        grammars = {key: self._grammar(one, tools) for key, one in different.items()}
        requests = [
            self._request(ids, chosen, tools, grammars[id(chosen)], start)
            for ids, chosen, start in zip(encoded, each, starts or [None] * len(encoded), strict=True)
        ]
        outputs = {
            request.id: RequestOutput(request.id, text, list(request.prompt_token_ids), new_outputs(request.params))
            for request, text in zip(requests, texts, strict=True)
        }
        failures: list[RequestFailed] = []
        token_bytes = self.tokenizer.token_bytes
        leases = [self._grammars.lease(one.grammar) for one in requests if one.grammar is not None]
        with tqdm(total=len(requests), desc="generating", unit="request", disable=not use_tqdm) as bar:
            try:
                with closing(self._events_of(requests)) as turns:
                    for events in turns:
                        failures += apply_events(events, outputs, bar, token_bytes)
            finally:
                for lease in leases:
                    lease.release()
        if failures:
            raise error_of(failures[0].error)
        return list(outputs.values())

    def _parse(self, result: RequestOutput, tools: ToolUse, start: ReasoningStart | None) -> None:
        """Separate the reasoning and the calls of answers to a chat from their text."""
        for output in result.outputs:
            parser = self._text.answers.new_parser(tools.schemas, is_inside=start is not None and start.is_inside)
            if parser is None:
                return
            whole = parse_whole(parser, output.text)
            output.text, output.reasoning = whole.text, whole.reasoning
            output.tool_calls = [
                ToolCall(call_id(result.request_id, output.index, number), name, arguments)
                for number, (name, arguments) in enumerate(whole.calls)
            ]
            if output.finish_reason is not None:
                output.finish_reason = str(client_reason(FinishReason(output.finish_reason), parser))

    def _grammar(self, params: SamplingParams, tools: ToolUse | None) -> Grammar | None:
        """Return what an answer with `params` must satisfy, to a chat with `tools` or to another prompt."""
        return (tools or NO_TOOLS).grammar(self._text.answers, params.structured_outputs)

    def _request(
        self,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        tools: ToolUse | None,
        grammar: Grammar | None = None,
        start: ReasoningStart | None = None,
    ) -> EngineRequest:
        """Return the request for one prompt, whose answer satisfies `grammar`; without `tools` it is no chat."""
        resolved = admit(prompt_token_ids, params, self.engine.model_info)
        now, queue_timeout = monotonic(), self.config.scheduler.queue_timeout
        start_deadline = now + queue_timeout if queue_timeout else None
        rules, shown = answer_rules(grammar, resolved, start), self._text.answers.shown_token_ids
        return EngineRequest(
            f"llm-{next(self._ids)}",
            tuple(prompt_token_ids),
            resolved,
            now,
            start_deadline,
            grammar=rules.grammar,
            reasoning=rules.reasoning,
            shown_token_ids=frozenset() if tools is None else shown(bool(tools.definitions)),
        )

    def _encode(self, prompt: Prompt) -> Sequence[int]:
        text = text_of(prompt)
        if text is not None:
            return [*self._text.chat_prefix(text), *self.tokenizer.encode(text)]
        return token_ids_of(prompt)

    def _encode_plain(self, prompt: Prompt) -> Sequence[int]:
        text = text_of(prompt)
        return token_ids_of(prompt) if text is None else self.tokenizer.encode(text)
