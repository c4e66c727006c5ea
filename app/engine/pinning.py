"""Pinned prefixes: system prompts whose KV blocks are computed at start and never evicted.

Each prefix is computed once per tenant (tenants share no blocks) by a request of one token, and its full blocks stay.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from app.contract.admission import admit
from app.contract.errors import EngineFailed, RequestError
from app.contract.events import RequestFailed
from app.contract.ports import PrefixStore
from app.contract.requests import EngineRequest, Submit
from app.contract.sampling_params import SamplingParams
from app.engine.engine import Engine
from app.engine.prefix_file import prefix_rejection

_log = logging.getLogger("quire.engine")

MAX_FETCH_S = 10.0
"""How long the start waits for each prefix that is stored."""
# Pinned blocks are lost to requests: at most this share of the pool.
MAX_SHARE = 0.5


def pin_prefixes(
    engine: Engine,
    prefixes: Mapping[str, Sequence[int]],
    tenants: Sequence[str | None],
    store: PrefixStore | None = None,
) -> None:
    """Compute and pin `prefixes`, token ids by name, or read them from `store`.

    Blocks; call it before the engine serves requests.

    Raises:
        EngineFailed: the model cannot compute them.
        ConfigurationError: a prefix is longer than the context, or all of them together do not fit the pool.
    """
    size, num_blocks = engine.model_info.block_size, engine.scheduler.limits.num_blocks
    needed = len(tenants) * sum(len(prefix) // size for prefix in prefixes.values())
    if needed > MAX_SHARE * num_blocks:
        raise prefix_rejection(
            f"The pinned prefixes take {needed} of {num_blocks} KV blocks; at most {MAX_SHARE:.0%} may be pinned. "
            "Shorten them, or raise --num-kv-blocks or --kv-cache-memory."
        )
    for name, prefix in prefixes.items():
        for tenant in tenants:
            num_pinned = _pin(engine, name, prefix, tenant, store)
            _log.info("pinned %d tokens of %s%s", num_pinned, name, f" for {tenant}" if tenant else "")


def _pin(engine: Engine, name: str, prefix: Sequence[int], tenant: str | None, store: PrefixStore | None) -> int:
    try:
        params = admit(prefix, SamplingParams(temperature=0.0, max_tokens=1), engine.model_info)
    except RequestError as error:
        raise prefix_rejection(f"{name} cannot be pinned: {error.message}") from None
    request = EngineRequest(f"pin:{tenant}:{name}", tuple(prefix), params, engine.clock(), tenant=tenant)
    if store is not None:
        request = replace(request, stored=store.fetch(request, MAX_FETCH_S))
    events = list(engine.turn([Submit(request)], engine.clock()).events)
    while engine.has_ready_work:
        events += engine.turn((), engine.clock()).events
    failed = [event for event in events if isinstance(event, RequestFailed)]
    if failed and failed[0].error.code == EngineFailed.code:
        raise EngineFailed(f"The engine failed while it computed {name}; see the log.")
    if failed:
        raise prefix_rejection(f"{name} cannot be pinned: {failed[0].error.message}")
    return engine.scheduler.pin(request)
