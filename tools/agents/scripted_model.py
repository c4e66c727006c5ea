"""An engine whose model answers by a script: one thread, one request after another, one token for each step."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue

from app.contract.engine_status import EngineHealth, EngineState, EngineStats, ModelInfo, StepReport
from app.contract.errors import QuireError
from app.contract.events import ChoiceEnd, EngineEvent, Finished, FinishReason, Timings, TokenDelta, Usage
from app.contract.requests import EngineCommand, EngineRequest, Submit
from app.runtime.clock import monotonic
from app.text.tokens.tokenizer import Tokenizer
from tools.agents.prompt_log import PromptLog


class ScriptedModel:
    """Implements `EnginePort`. Answers are short, so that it need not pause or abort them. Any thread.

    `answer` returns the text of the answer to a prompt. The usage has those tokens as cached that `prompts` knows, in
    whole blocks.

    Attributes:
        failure: why it has given up, if it has.
    """

    def __init__(self, info: ModelInfo, tokenizer: Tokenizer, answer: Callable[[str], str], prompts: PromptLog) -> None:
        self.failure: QuireError | None = None
        self._info = info
        self._tokenizer = tokenizer
        self._answer = answer
        self._prompts = prompts
        self._inbox: SimpleQueue[EngineCommand | None] = SimpleQueue()
        self._deliver: Callable[[StepReport], None] | None = None
        self._thread = threading.Thread(target=self._run, name="scripted-model", daemon=True)
        self._num_steps = 0

    def start(self, deliver: Callable[[StepReport], None]) -> None:
        self._deliver = deliver
        self._thread.start()

    def post(self, command: EngineCommand) -> None:
        self._inbox.put(command)

    def health(self) -> EngineHealth:
        if self.failure is not None:
            return EngineHealth(EngineState.FAILED, 1.0, self._num_steps, 0.0, self.failure.message)
        return EngineHealth(EngineState.READY, 1.0, self._num_steps)

    def model_info(self) -> ModelInfo | None:
        return self._info

    def fail(self, error: QuireError) -> None:
        """Give up; see `EngineThread.fail`."""
        self.failure = error

    def stop(self) -> None:
        self._inbox.put(None)

    def join(self, timeout_s: float) -> bool:
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (command := self._inbox.get()) is not None:
            if isinstance(command, Submit):
                for event in self._events(command.request):
                    self._report(event)

    def _report(self, event: EngineEvent) -> None:
        assert self._deliver is not None, "started"
        self._num_steps += 1
        self._deliver(StepReport((event,), EngineStats(self._num_steps)))

    def _events(self, request: EngineRequest) -> Iterator[EngineEvent]:
        began, seen = monotonic(), self._prompts.add(request.prompt_token_ids)
        text = self._answer(self._tokenizer.decode(request.prompt_token_ids, skip_special_tokens=False))
        token_ids = [] if request.is_prompt_only else self._tokenizer.encode(text, add_special_tokens=False)
        most = request.params.max_tokens or len(token_ids)
        detokenizer, said = self._tokenizer.new_detokenizer(request.shown_token_ids), token_ids[:most]
        for number, token_id in enumerate(said, 1):
            piece = detokenizer.append(token_id) + (detokenizer.flush() if number == len(said) else "")
            yield TokenDelta(request.id, 0, number, (token_id,), piece)
        is_whole = len(said) == len(token_ids) and not request.is_prompt_only
        end = ChoiceEnd(FinishReason.STOP if is_whole else FinishReason.LENGTH)
        num_cached = min(seen.num_shared, seen.num_tokens - 1) // self._info.block_size * self._info.block_size
        usage = Usage(seen.num_tokens, len(said), num_cached)
        yield Finished(request.id, 0, end, usage, Timings(0.0, 0.0, monotonic() - began))
