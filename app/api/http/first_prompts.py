"""Says once that the first prompt of a client does not fit, and what would: agents send long ones."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from app.config.settings import ModelConfig
from app.contract.engine_status import ModelInfo
from app.contract.errors import ContextLengthExceeded, KVCapacityExceeded


class FirstPrompts:
    """Watches the first prompts of conversations with a model of these settings. Any thread."""

    def __init__(self, settings: ModelConfig) -> None:
        self._has_set_length = settings.max_model_len is not None
        self._is_said = threading.Lock()  # never released

    @contextmanager
    def watched(self, model: ModelInfo, *, is_first: bool) -> Iterator[None]:
        """Log a line if a prompt is rejected in the block, is the first one, and no line was logged before."""
        try:
            yield
        except (ContextLengthExceeded, KVCapacityExceeded) as error:
            num_tokens = error.num_prompt_tokens
            if is_first and num_tokens is not None and self._is_said.acquire(blocking=False):
                logging.getLogger("quire").warning("%s", self._advice(num_tokens, model, error))
            raise

    def _advice(self, num_tokens: int, model: ModelInfo, error: ContextLengthExceeded | KVCapacityExceeded) -> str:
        if isinstance(error, KVCapacityExceeded):
            has, cure = f"the KV cache holds {model.kv_capacity_tokens:,}", "start with a larger --kv-cache-memory"
        else:
            has = f"this server's has {model.max_model_len:,}"
            cure = "raise --max-model-len" if self._has_set_length else "serve a model with a longer one"
        needs = f"A client's first prompt needs a context of more than {num_tokens:,} tokens"
        return f"{needs}, and {has}: {cure}. This is said once; docs/agents.md has what agents need."
