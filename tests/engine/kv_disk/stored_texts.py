"""Contents and data of blocks, and engines over a small model with a folder for its blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from app.config.settings import make_config
from app.contract.requests import EngineRequest
from app.engine.build import build_engine
from app.engine.engine import Engine
from app.engine.kv_disk.block_folder import BlockFolder
from app.engine.kv_disk.disk_store import KVDisk
from app.engine.schedule.kv.prefix_cache import BlockContent, extend_chain
from tests.checkpoints import tiny
from tests.engine.driving import LogitRecorder, Run, request

SPACE = 2**30


def chain(count: int, first: int = 0, context: bytes = b"context") -> list[BlockContent]:
    """The contents of the blocks of a text; texts with another `first` token have no block in common."""
    contents: list[BlockContent] = []
    for index in range(count):
        parent = contents[-1].hash if contents else b""
        contents.append(extend_chain(parent, range(first + 4 * index, first + 4 * index + 4), context))
    return contents


def data_of(content: BlockContent, size: int = 64) -> memoryview:
    """Bytes that depend on the content."""
    return memoryview(content.hash * (size // 16))


class StoredEngine:
    """An engine with a folder for its blocks; `end` ends it as the server does.

    No time passes for the store, and to compute a token takes `token_s` (0: unknown), so that no test depends on speed.
    """

    def __init__(
        self, folder: Path, model: Path | str | None = None, *, token_s: float = 0.0, **settings: object
    ) -> None:
        torch.set_num_threads(1)
        space = int(str(settings.pop("space", SPACE)))
        given = {"num_kv_blocks": 64, "model": str(model or tiny("Llama")), **settings}
        self.disk = KVDisk(BlockFolder(folder, space), lambda: 0.0)
        self.engine: Engine = build_engine(make_config(given), kv_disk=self.disk)
        assert self.disk._cache is not None
        self.disk._cache = replace(self.disk._cache, rates=lambda: (token_s, 0.0))
        self.recorder = LogitRecorder(self.engine)

    def ask(
        self, prompt: Sequence[int], *, tenant: str | None = None, salt: str | None = None
    ) -> tuple[list[int], int]:
        """Answer a prompt; return the tokens, and how many tokens of the prompt were not computed."""
        asked = replace(self.request(prompt), tenant=tenant, cache_salt=salt)
        run = Run(self.engine)
        limit_s = self.disk.limit_s(asked)
        run.add(replace(asked, stored=self.disk.fetch(asked, limit_s) if limit_s else None))
        run.finish()
        end = run.end(asked.id)
        assert end is not None
        return run.tokens(asked.id), end.usage.cached_tokens

    def request(self, prompt: Sequence[int]) -> EngineRequest:
        """A request for a greedy answer of 20 tokens."""
        return request(self.engine, "r", prompt, max_tokens=20)

    def end(self, limit_s: float = 60.0, *, has_ended: bool = True) -> None:
        """Write what waits, and let others have the folder."""
        self.disk.close(limit_s, has_ended=has_ended)
