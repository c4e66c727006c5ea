"""A model in this process, for the terminal commands: the server's engine without the server."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Sequence

from tqdm import tqdm

from app.commands.answer_end import CONTEXT_SHARE, OnEnd, ignore_end
from app.commands.streamed_text import Messages, TextStream, iterate
from app.config.settings import Config
from app.contract.admission import admit
from app.contract.engine_status import EngineState
from app.contract.errors import ConfigurationError, EngineFailed
from app.contract.events import Finished, RequestFailed, TokenDelta
from app.contract.requests import EngineRequest
from app.contract.sampling_params import SamplingParams
from app.engine.thread import EngineThread
from app.runtime.clock import monotonic
from app.runtime.torch_needs import check_torch_can_load
from app.streaming.bridge import AsyncEngine
from app.streaming.session import Session
from app.text.chat_template import RenderOptions
from app.text.opened_model import OpenedModel

_POLL_S = 0.02


class LocalModel:
    """A loaded model; its answers are ordinary iterators. One thread, one answer at a time.

    Interrupting the iteration (Ctrl-C) aborts the answer; the model can still be used.
    """

    def __init__(self, config: Config, runner: asyncio.Runner) -> None:
        check_torch_can_load()
        model = OpenedModel.open(config.model)
        self._text = model.text
        self._runner = runner
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

    def chat(self, messages: Messages, params: SamplingParams, on_end: OnEnd = ignore_end) -> TextStream:
        """Yield the text deltas of the answer to a conversation, or of more of the answer that it ends with.

        Without `max_tokens` the answer has at most a quarter of the context.

        Raises:
            ConfigurationError: the model has no chat template.
            RequestError: the conversation does not fit the model.
        """
        template = self._text.chat_template
        if template is None:
            raise ConfigurationError("this model has no chat template; set one with --chat-template FILE")
        goes_on = messages[-1]["role"] == "assistant"
        options = RenderOptions(add_generation_prompt=not goes_on, continue_final=goes_on)
        most = int(self._engine.model_info().max_model_len * CONTEXT_SHARE)
        return self._answer(template.render([dict(each) for each in messages], options), params, on_end, most)

    def complete(self, prompt: str, params: SamplingParams, on_end: OnEnd = ignore_end) -> TextStream:
        """Yield the text deltas of the completion of `prompt`.

        Raises:
            RequestError: the prompt does not fit the model.
        """
        return self._answer([*self._text.chat_prefix(prompt), *self._text.tokenizer.encode(prompt)], params, on_end)

    def close(self) -> None:
        """End the engine."""
        self._runner.run(self._engine.close())

    def _answer(
        self, prompt_token_ids: Sequence[int], params: SamplingParams, on_end: OnEnd, most: int | None = None
    ) -> TextStream:
        model = self._engine.model_info()
        limits = [limit for limit in (most, model.defaults.max_tokens) if limit is not None]
        resolved = admit(prompt_token_ids, params, model, default_max_tokens=min(limits, default=None))
        request = EngineRequest(uuid.uuid4().hex, tuple(prompt_token_ids), resolved, monotonic())
        return iterate(self._runner, self._stream(request, on_end))

    async def _stream(self, request: EngineRequest, on_end: OnEnd) -> AsyncGenerator[str, None]:
        async with Session(self._engine, request) as session:
            async for events in session:
                for event in events:
                    if isinstance(event, RequestFailed):
                        raise EngineFailed(event.error.message)
                    if isinstance(event, TokenDelta):
                        yield event.text
                    if isinstance(event, Finished):
                        on_end(event.reason, event.stop_reason)

    async def _load(self) -> None:
        self._engine.start()
        # Small models load before a progress bar could be read.
        with tqdm(total=100, desc="Loading", unit="%", delay=0.5, leave=False, disable=None) as bar:
            while (health := self._engine.health()).state is EngineState.LOADING:
                bar.update(round(100 * health.progress) - bar.n)
                await asyncio.sleep(_POLL_S)
        if health.state is EngineState.FAILED:
            raise self._thread.failure or EngineFailed(health.message)
