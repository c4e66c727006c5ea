"""What a server under sustained pressure does less of, by level: the one table that both threads read.

The engine raises and lowers the level (`engine/overload.py`); the loop side sees it in `EngineStats` and
applies what concerns requests that are not admitted yet. An admitted request is never cut or shed.
"""

from __future__ import annotations

from typing import NamedTuple


class BrownoutEffects(NamedTuple):
    """What holds at one level.

    `chunk_scale` shrinks the step time that prefill chunks may fill; `default_max_tokens` bounds the answers to
    requests that name no max_tokens (None: no bound; an explicit value is never cut); `is_shedding` means that new
    requests are refused with `overloaded`.
    """

    chunk_scale: float = 1.0
    default_max_tokens: int | None = None
    is_shedding: bool = False


# Each level keeps what the one before it does. 0.5: newcomers wait longer, but who is being answered gets tokens at
# twice the rate the target asks for. 256 tokens: a full answer to most chat questions (ShareGPT's mean is 338), and a
# small part of a context's worth of KV blocks, which is what an answer without a limit could take.
_LEVELS = (
    BrownoutEffects(),
    BrownoutEffects(chunk_scale=0.5),
    BrownoutEffects(chunk_scale=0.5, default_max_tokens=256),
    BrownoutEffects(chunk_scale=0.5, default_max_tokens=256, is_shedding=True),
)
# Shedding does not end sooner after the pressure has gone: who is refused need not come back before.
SHEDDING_S = 5
MAX_LEVEL = len(_LEVELS) - 1


def effects(level: int) -> BrownoutEffects:
    """Return what holds at `level` (0 to `MAX_LEVEL`). Any thread."""
    return _LEVELS[level]
