"""Where a store of keys and values outside of the scheduler's pools joins it; every engine has the one without a store.

The scheduler looks a request up in the connector when the request starts, and offers it blocks as they are computed and
when a sequence ends. Bytes have the layout of `KVCache.export_blocks` and `import_blocks`, which is stable; blocks are
named by the hash chain of `prefix_cache`. The simulator runs the scheduler with a store behind it.
"""

from __future__ import annotations

from collections.abc import Sequence

from app.contract.requests import EngineRequest
from app.engine.schedule.kv.prefix_cache import BlockContent
from app.engine.schedule.step_plan import BlockLoad


class KVConnector:
    """An external KV store: this one finds and keeps nothing. Engine thread only; no method may block."""

    def num_matched_tokens(self, request: EngineRequest, num_computed: int) -> int:
        """Return how many tokens of the prompt, from the first on, need not be computed.

        `num_computed` of these are in the KV cache already. Changes nothing.
        """
        return num_computed

    def load(self, request: EngineRequest, first: int, block_ids: tuple[int, ...]) -> BlockLoad | None:
        """Return the bytes for `block_ids`, the table entries from `first` on, which the step being planned will write.

        The load runs between the step's swap-outs, which may still read these blocks, and its copies. A connector that
        writes to the blocks by itself at that time returns None.
        """
        return None

    def keep(self, contents: Sequence[BlockContent], block_ids: Sequence[int]) -> None:
        """Take note of full blocks that were computed or loaded, and can be found from now on."""

    def request_finished(self, request: EngineRequest, block_ids: tuple[int, ...]) -> bool:
        """Handle the end of a sequence; True keeps its full blocks as they are until `take_released` names the request.

        Other requests cannot use kept blocks, so they should be released soon.
        """
        return False

    def take_released(self) -> tuple[str, ...]:
        """Return the ids of the requests whose kept blocks are no longer needed, each once."""
        return ()
