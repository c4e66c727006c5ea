"""The brown-out levels of a server under sustained load, and their effects: one table for both threads.

The engine raises and lowers the level (`engine/brownout.py`). The event loop reads the level in `EngineStats` and
applies the effects on requests that are not admitted yet. An admitted request is never shortened or dropped.
"""

from __future__ import annotations

from typing import NamedTuple


class BrownoutEffects(NamedTuple):
    """The effects of one level.

    `chunk_scale` scales down the step time that prefill chunks may fill. `default_max_tokens` limits the output of
    requests without max_tokens (None: no limit; an explicit value is never changed). `is_shedding` means that new
    requests are rejected with `overloaded`.
    """

    chunk_scale: float = 1.0
    default_max_tokens: int | None = None
    is_shedding: bool = False


# Each level includes the effects of the one before. 0.5: new requests wait longer, but running ones get their tokens at
# twice the rate of the target. 256 tokens: a complete output for most chat questions (ShareGPT's mean is 338), and a
# small part of the KV blocks of a full context, which an output without a limit could take.
_LEVELS = (
    BrownoutEffects(),
    BrownoutEffects(chunk_scale=0.5),
    BrownoutEffects(chunk_scale=0.5, default_max_tokens=256),
    BrownoutEffects(chunk_scale=0.5, default_max_tokens=256, is_shedding=True),
)
# Shedding lasts at least this long after the load has gone; it is also the Retry-After of rejected requests.
SHEDDING_S = 5
MAX_LEVEL = len(_LEVELS) - 1


def effects(level: int) -> BrownoutEffects:
    """Return the effects of `level` (0 to `MAX_LEVEL`). Any thread."""
    return _LEVELS[level]
