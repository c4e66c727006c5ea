"""A fake KV store outside of the process: it has the blocks of some prompts, and saves some blocks."""

from __future__ import annotations

from collections.abc import Callable
from zlib import crc32

from app.contract.requests import EngineRequest
from app.engine.schedule.kv.kv_connector import KVConnector
from tests.engine.schedule.fake_tokens import prefix_hash

CALLS_KEPT = 6


class FakeConnector(KVConnector):
    """Has the blocks of a third of all prompts, and saves the blocks of a quarter of all requests after their end.

    `fill` writes contents into a device block.
    """

    def __init__(self, block_size: int, fill: Callable[[int, list[int]], None]) -> None:
        self.kept: dict[str, list[tuple[int, ...]]] = {}
        self.num_loaded = 0
        self._block_size = block_size
        self._fill = fill
        self._calls_left: dict[str, int] = {}

    def num_matched_tokens(self, request: EngineRequest, num_computed: int) -> int:
        return len(request.prompt_token_ids) if crc32(request.id.encode()) % 3 == 0 else num_computed

    def load(self, request: EngineRequest, first: int, block_ids: tuple[int, ...]) -> None:
        content, contents = request.params.seed or 0, []
        for token_id in request.prompt_token_ids:
            content = prefix_hash(token_id, content)
            contents.append(content)
        for index, block_id in enumerate(block_ids, first):
            self._fill(block_id, contents[index * self._block_size : (index + 1) * self._block_size])
            self.num_loaded += 1

    def request_finished(self, request: EngineRequest, block_ids: tuple[int, ...]) -> bool:
        if crc32(request.id.encode()) % 4:
            return False
        self.kept.setdefault(request.id, []).append(block_ids)
        self._calls_left[request.id] = CALLS_KEPT
        return True

    def take_released(self) -> tuple[str, ...]:
        """Release each request's blocks after `CALLS_KEPT` calls."""
        if not self._calls_left:
            return ()
        released = tuple(request_id for request_id, left in self._calls_left.items() if left <= 1)
        self._calls_left = {request_id: left - 1 for request_id, left in self._calls_left.items() if left > 1}
        for request_id in released:
            del self.kept[request_id]
        return released
