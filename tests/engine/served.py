"""Engines whose masks another process makes, as a server's are."""

from __future__ import annotations

import msgspec
import pytest

from app.engine.execute import worker_masks
from app.engine.execute.remote_sequences import RemoteSequences
from app.text.grammar.children.mask_messages import Ready
from tests.engine import driving
from tests.text.grammar.served_cache import ServedCache


def ignore_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let steps wait for every mask, and let none be slow, so that a busy machine computes the same steps."""
    apply_ready = RemoteSequences._apply_ready

    def apply_fast(self: RemoteSequences, ready: Ready) -> None:
        apply_ready(self, msgspec.structs.replace(ready, is_slow=False))

    monkeypatch.setattr(RemoteSequences, "_apply_ready", apply_fast)
    monkeypatch.setattr(worker_masks, "WAIT_S", 600.0)
    monkeypatch.setattr(worker_masks, "DRAFT_WAIT_S", 600.0)
    monkeypatch.setattr(worker_masks, "START_WAIT_S", 600.0)


def serve(monkeypatch: pytest.MonkeyPatch) -> list[ServedCache]:
    """Let the engines that are built from now on have their masks made by another process; return their caches."""
    made: list[ServedCache] = []

    def make() -> ServedCache:
        made.append(ServedCache())
        return made[-1]

    monkeypatch.setattr(driving, "make_grammars", make)
    return made
