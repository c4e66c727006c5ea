"""Pinned prefixes: system prompts whose KV blocks are computed at start and never given up.

A file holds the text of one system prompt. What all chats with it have in common, from their first token on, is
computed once for every tenant (tenants share no blocks) by a request of one token, and its full blocks stay.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

from app.admission import admit
from app.config import Config, tenants
from app.engine.engine import Engine
from app.errors import ConfigurationError, RequestError
from app.messages import EngineRequest, RequestFailed
from app.params import SamplingParams
from app.text.text_side import TextSide

_log = logging.getLogger("quire.engine")

# Pinned blocks take room from requests: at most this share of the pool.
MAX_SHARE = 0.5
MAX_PROMPT_BYTES = 2**20


def pin_prefixes(engine: Engine, config: Config, text: TextSide) -> None:
    """Compute and pin the prefixes of `config.cache.pin_prefix`. Blocks; before the engine serves anybody.

    Raises:
        ConfigurationError: a file cannot be read, is empty or too long, all of them together are too much for the
            pool, or there is no prefix cache.
    """
    if not config.cache.pin_prefix:
        return
    if not config.cache.enable_prefix_caching:
        raise _refusal("pin_prefix needs the prefix cache; leave out --no-enable-prefix-caching.")
    prefixes = {name: _prefix(Path(name), text) for name in config.cache.pin_prefix}
    names, size, num_blocks = tenants(config.server), engine.card.block_size, engine.scheduler.limits.num_blocks
    needed = len(names) * sum(len(prefix) // size for prefix in prefixes.values())
    if needed > MAX_SHARE * num_blocks:
        raise _refusal(
            f"The pinned prefixes take {needed} of {num_blocks} KV blocks; at most {MAX_SHARE:.0%} may be pinned. "
            "Shorten them, or raise --num-kv-blocks or --kv-cache-memory."
        )
    for name, prefix in prefixes.items():
        for tenant in names:
            num_pinned = _pin(engine, name, prefix, tenant)
            _log.info("pinned %d tokens of %s%s", num_pinned, name, f" for {tenant}" if tenant else "")


def _pin(engine: Engine, name: str, prefix: Sequence[int], tenant: str | None) -> int:
    try:
        params = admit(prefix, SamplingParams(temperature=0.0, max_tokens=1), engine.card)
    except RequestError as error:
        raise _refusal(f"{name} cannot be pinned: {error.message}") from None
    request = EngineRequest(f"pin:{tenant}:{name}", tuple(prefix), params, engine.clock(), tenant=tenant)
    events = engine.add(request)
    while engine.has_ready_work:
        events += engine.step(engine.clock())
    failed = [event for event in events if isinstance(event, RequestFailed)]
    if failed:
        raise _refusal(f"{name} cannot be pinned: {failed[0].error.message}")
    return engine.scheduler.pin(request)


def _prefix(file: Path, text: TextSide) -> list[int]:
    """Return the tokens that all chats with the system prompt in `file` begin with."""
    try:
        content = file.read_bytes()
        prompt = content[: MAX_PROMPT_BYTES + 1].decode().strip()
    except (OSError, ValueError) as error:
        raise _refusal(f"The prefix file {file} cannot be read: {error}.") from None
    if not prompt or len(content) > MAX_PROMPT_BYTES:
        raise _refusal(f"The prefix file {file} has {len(content)} bytes; it must have 1 to {MAX_PROMPT_BYTES}.")
    if text.chat_template is None:
        return text.tokenizer.encode(prompt)
    system: dict[str, object] = {"role": "system", "content": prompt}
    one, other = (text.chat_template.render([system, {"role": "user", "content": word}]) for word in ("a", "7"))
    return [token for token, _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))]


def _refusal(message: str) -> ConfigurationError:
    return ConfigurationError(message, param="pin_prefix")
