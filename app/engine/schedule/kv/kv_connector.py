"""The seam to KV caches outside of this process: another tier, another machine, a prefill server.

The scheduler asks what is there when a request starts, and says what becomes of its blocks when it ends. An
implementation moves bytes with `KVCache.export_blocks` and `import_blocks`, whose layout is stable; blocks are named
by the hash chain of `prefix_cache`. The null implementation knows nothing and keeps nothing.
"""

from __future__ import annotations

from typing import Protocol

from app.contract.requests import EngineRequest


class KVConnector(Protocol):
    """What the scheduler asks of a KV store outside. Engine thread only; nothing may block."""

    def num_matched_tokens(self, request: EngineRequest, num_computed: int) -> int:
        """Return how many tokens of the prompt, from the first on, could be there without computing them.

        `num_computed` of them are already. Changes nothing.
        """

    def load(self, request: EngineRequest, first: int, block_ids: tuple[int, ...]) -> None:
        """Fill `block_ids`, the table entries from `first` on, for the step that is being planned.

        Between its swap-outs, which may still read these blocks, and its copies.
        """

    def request_finished(self, request: EngineRequest, block_ids: tuple[int, ...]) -> bool:
        """A sequence has ended; True keeps its full blocks as they are until `take_released` names the request.

        Kept blocks are missing elsewhere, so they must come back soon.
        """

    def take_released(self) -> tuple[str, ...]:
        """Return the ids of the requests whose kept blocks are no longer needed, each once."""


class NullConnector:
    """No KV store outside."""

    def num_matched_tokens(self, request: EngineRequest, num_computed: int) -> int:
        """See KVConnector: nothing is there."""
        return num_computed

    def load(self, request: EngineRequest, first: int, block_ids: tuple[int, ...]) -> None:
        """See KVConnector: never called."""

    def request_finished(self, request: EngineRequest, block_ids: tuple[int, ...]) -> bool:
        """See KVConnector: the blocks are free at once."""
        return False

    def take_released(self) -> tuple[str, ...]:
        """See KVConnector: nothing was kept."""
        return ()
