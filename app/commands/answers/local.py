"""A model in this process, for the terminal commands: the server's engine without the server."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from typing import Any

from app.checkpoint.names import served_name
from app.commands.answers.answer_limits import CONTEXT_SHARE
from app.commands.answers.loading_bar import loading_bar
from app.commands.answers.streamed_text import AnswerEnd, Messages, TextStream, iterate
from app.commands.dialog.responder import ModelChoice
from app.config.settings import Config
from app.contract.admission import MODELS_LENGTH, DefaultLength
from app.contract.engine_status import EngineState
from app.contract.errors import ConfigurationError, EngineFailed
from app.contract.events import RequestFailed, TokenDelta
from app.contract.requests import EngineRequest
from app.contract.sampling_params import SamplingParams
from app.engine.output_processor import FAILED_REQUEST
from app.engine.thread import EngineThread
from app.runtime.clock import monotonic
from app.streaming.async_engine import AsyncEngine
from app.streaming.session import Session
from app.text.answer.answer_demand import AnswerDemand
from app.text.answer.answer_format import AnswerParser
from app.text.answer.parsed import Parsed
from app.text.answer.tool_use import NO_TOOLS
from app.text.entry.chat_prompt import ChatPrompt, EncodedPrompt
from app.text.entry.opened_model import OpenedModel
from app.text.entry.request_builder import RequestBuilder, Terms
from app.text.template.chat_template import RenderOptions

_POLL_S = 0.02
_log = logging.getLogger("quire.engine")


class LocalModel:
    """A loaded model; its answers are ordinary iterators. One thread, one answer at a time.

    Interrupting the iteration (Ctrl-C) aborts the answer; the model can still be used. `model` is the model of
    `config`, if it is open already.
    """

    def __init__(self, config: Config, runner: asyncio.Runner, model: OpenedModel | None = None) -> None:
        model = model or OpenedModel.open(config.model)
        self._text = model.text
        self._runner = runner
        _log.addFilter(_is_news)
        self._thread = EngineThread(config, model=model)
        self._engine = AsyncEngine(self._thread, config)
        try:
            runner.run(self._load())
        except BaseException:
            self.close()  # also ends compilers that the load has started
            raise

    @property
    def can_chat(self) -> bool:
        """Whether the model has a chat template."""
        return self._text.chat_template is not None

    @property
    def context(self) -> int:
        """The most tokens of a prompt and its output."""
        return self._engine.model_info().max_model_len

    def chat(self, messages: Messages, params: SamplingParams) -> TextStream:
        """Yield the text deltas of the answer to a conversation, or of more of the answer that it ends with.

        What the model thinks before is left out, as it is of a server's answer. Without `max_tokens` the answer has at
        most a quarter of the context.

        Raises:
            ConfigurationError: the model has no chat template.
            RequestError: the conversation does not fit the model, or its template cannot continue a message.
        """
        template = self._text.chat_template
        if template is None:
            raise ConfigurationError("this model has no chat template; set one with --chat-template FILE")
        goes_on = messages[-1]["role"] == "assistant"
        options = RenderOptions(add_generation_prompt=not goes_on, continue_final=goes_on)
        copies: list[dict[str, Any]] = [dict(message) for message in messages]
        prompt = ChatPrompt(self._text, template, copies, options, NO_TOOLS, self.context)
        return self._read(prompt.encode(), params, DefaultLength(context_share=CONTEXT_SHARE))

    def complete(self, prompt: str, params: SamplingParams) -> TextStream:
        """Yield the text deltas of the completion of `prompt`.

        Raises:
            RequestError: the prompt does not fit the model.
        """
        return self._read(self._builder.encode_for_completion(prompt), params, MODELS_LENGTH)

    def close(self) -> None:
        """End the engine."""
        self._runner.run(self._engine.close())
        _log.removeFilter(_is_news)

    @property
    def _builder(self) -> RequestBuilder:
        return RequestBuilder(self._text, self._engine.model_info())

    def _read(self, prompt: EncodedPrompt, params: SamplingParams, length: DefaultLength) -> TextStream:
        demand, terms = AnswerDemand(self._text.answers), Terms(arrival_time=monotonic())
        request, plan = self._builder.answer(uuid.uuid4().hex, prompt, params, demand, terms, length=length)
        return self._texts(request, None if plan is None else plan.new_parser())

    def _texts(self, request: EngineRequest, parser: AnswerParser | None) -> TextStream:
        end = AnswerEnd(prompt_tokens=len(request.prompt_token_ids))
        yield from iterate(self._runner, self._stream(request, end, parser))
        return end

    async def _stream(
        self, request: EngineRequest, end: AnswerEnd, parser: AnswerParser | None
    ) -> AsyncGenerator[str, None]:
        async with Session(self._engine, request) as session:
            async for events in session:
                for event in events:
                    if isinstance(event, RequestFailed):
                        raise EngineFailed(event.error.message)
                    if isinstance(event, TokenDelta):
                        yield event.text if parser is None else Parsed(tuple(parser.feed(event.text))).text
            if parser is not None:
                yield Parsed(tuple(parser.finish())).text
            end.choice = session.ends.get(0)
            end.completion_tokens = session.usage.completion_tokens if session.usage else None

    async def _load(self) -> None:
        self._engine.start()
        with loading_bar() as show:
            while (health := self._engine.health()).state is EngineState.LOADING:
                show(health.progress)
                await asyncio.sleep(_POLL_S)
        if health.state is EngineState.FAILED:
            raise self._thread.failure or EngineFailed(health.message)


def _is_news(record: logging.LogRecord) -> bool:
    """Return whether a line of the log says more than the error of the request, which the terminal shows."""
    return record.msg != FAILED_REQUEST or record.exc_info is not None


class LocalModels:
    """Implements `Responder` for models in this process, one at a time."""

    def __init__(self, config: Config, runner: asyncio.Runner, params: SamplingParams) -> None:
        self._config = config
        self._runner = runner
        self._params = params
        self._model = LocalModel(config, runner)

    @property
    def model(self) -> ModelChoice:
        return ModelChoice(served_name(self._config.model), self._model.context)

    def answer(self, messages: Messages) -> TextStream:
        return self._model.chat(messages, self._params)

    def models(self) -> Sequence[ModelChoice]:
        """Return the models that are stored on this machine and can be served."""
        from app.commands.stored_models import stored_models  # reads the folders of the hub's library

        return [ModelChoice(stored.name) for stored in stored_models() if stored.reason is None]

    def use(self, name: str) -> None:
        """End the model that is loaded, and load another one."""
        named = replace(self._config.model, model=name, revision=None, served_model_name=None, chat_template=None)
        config = replace(self._config, model=named)
        opened = OpenedModel.open(named)  # one that is refused changes nothing
        self._model.close()
        try:
            self._model = LocalModel(config, self._runner, opened)
        except BaseException:  # also Ctrl-C
            self._model = LocalModel(self._config, self._runner)
            raise
        self._config = config

    def close(self) -> None:
        """End the engine."""
        self._model.close()
