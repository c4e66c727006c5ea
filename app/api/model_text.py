"""Tokenizer and chat template of the served model: loaded while the server already answers, used on threads."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from app.api.error_response import FROM_OUTSIDE
from app.checkpoint.folder import resolve
from app.config.settings import ModelConfig
from app.contract.engine_status import EngineHealth, EngineState
from app.contract.errors import EngineFailed, ModelLoading, QuireError
from app.runtime.contain import contain
from app.streaming.background import Background
from app.text.frontend import TextFrontend

MAX_LONG_WAITING = 16  # long bodies: each holds up to --max-request-bytes
Result = TypeVar("Result")


class ModelText:
    """The text frontend, once it is there, and the threads that render and tokenize. Loop only.

    Long bodies have a thread of their own, so that short ones never wait for them.
    """

    def __init__(self, settings: ModelConfig, loaded: TextFrontend | None = None) -> None:
        self._settings = settings
        self._loaded = loaded
        self._failure: str | None = None
        self._threads = Background("text")
        self._long_thread = Background("long-text", num_threads=1, max_queue=MAX_LONG_WAITING)

    async def load(self) -> None:
        """Load it, if it was not given. A failure is logged and kept. Cancel-safe: a cancelled load changes nothing."""
        if self._loaded is None:
            with contain(self._note_failure, FROM_OUTSIDE):
                self._loaded = await self._threads.run(_load, self._settings)

    def get(self) -> TextFrontend:
        """Return tokenizer and chat template.

        Raises:
            ModelLoading: they are not loaded yet.
            EngineFailed: they cannot be loaded.
        """
        if self._loaded is not None:
            return self._loaded
        if self._failure is not None:
            raise EngineFailed(self._failure)
        raise ModelLoading("The tokenizer is loading; try again in a moment.")

    def add_to(self, health: EngineHealth) -> EngineHealth:
        """Return the health of engine and text together: ready only when both are, failed when one of them is."""
        if self._failure is not None and health.state is not EngineState.FAILED:
            return replace(health, state=EngineState.FAILED, message=self._failure)
        if self._loaded is None and health.state is EngineState.READY:
            return replace(health, state=EngineState.LOADING)
        return health

    async def run(self, function: Callable[..., Result], *args: object, is_long: bool, account: str) -> Result:
        """Call `function(*args)` on a thread; see `Background.run`."""
        threads = self._long_thread if is_long else self._threads
        return await threads.run(function, *args, account=account)

    def close(self) -> None:
        """Refuse what waits for a thread. Does not block. Idempotent."""
        self._threads.close()
        self._long_thread.close()

    def _note_failure(self, error: BaseException) -> None:
        log = logging.getLogger(__name__)
        if isinstance(error, QuireError):
            self._failure = error.message
            log.error("the tokenizer cannot be loaded: %s", error)
        else:
            self._failure = "The tokenizer cannot be loaded; see the server log."
            log.error("the tokenizer cannot be loaded: %s", error, exc_info=error)


def _load(settings: ModelConfig) -> TextFrontend:
    text = TextFrontend.load(settings, resolve(settings.model))
    _ = text.tokenizer.max_token_chars  # worked out now: with a large vocabulary it would hold up the first requests
    return text
