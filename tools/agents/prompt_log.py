"""The prompts that a model without a cache has seen: how many tokens one with a cache would have found there."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from operator import eq
from pathlib import Path


@dataclass(frozen=True, slots=True)
class SeenPrompt:
    """The length of a prompt, and of the longest beginning that it shares with an earlier one, in tokens."""

    num_tokens: int
    num_shared: int


class PromptLog:
    """Keeps prompts in a folder, so that those of an earlier process count too. One thread."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._prompts: list[list[int]] = [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]

    def add(self, token_ids: Sequence[int]) -> SeenPrompt:
        """Keep a prompt, and return what is known of it."""
        num_shared = max((_num_shared(token_ids, earlier) for earlier in self._prompts), default=0)
        self._prompts.append([*token_ids])
        (self._folder / f"{len(self._prompts):04}.json").write_text(json.dumps([*token_ids]))
        return SeenPrompt(len(token_ids), num_shared)


def _num_shared(one: Sequence[int], other: Sequence[int]) -> int:
    return sum(1 for _ in takewhile(bool, map(eq, one, other)))
