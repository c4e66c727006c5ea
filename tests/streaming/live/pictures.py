"""Made-up pictures of an engine's books, whose references are what their tables say."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

from app.contract.engine_figures import BlockFigures, EngineFigures
from app.contract.engine_picture import EnginePicture, GroupState, PictureGroup, PictureTable, Record
from app.contract.engine_status import EngineState

BLOCK_SIZE = 16

FIGURES = EngineFigures(
    model="guide", state=EngineState.READY, running=1, waiting=0, paused=0,
    blocks=BlockFigures(total=16, free=12, cached=1, used=3, fenced=0, host=0), tokens_per_s=410.5,
    prompt_tokens_per_s=12.0, first_token_ms=None, between_tokens_ms=None, hit_rate=0.25, step_ms=2.4,
    step_target_ms=50.0, steps_over_target=0, preemptions=0, swaps=0, brownout=0, faults=0,
)  # fmt: skip


def ids(block_ids: Iterable[int]) -> bytes:
    """Block ids as a picture has them."""
    return array("I", block_ids).tobytes()


def table(block_ids: Iterable[int], choice: int = 0, num_tokens: int | None = None, host: Iterable[int] = ()):
    """The table of one sequence; without a number of tokens its last block has room for one."""
    own = [*block_ids]
    filled = max(0, len(own) * BLOCK_SIZE - 1) if num_tokens is None else num_tokens
    return PictureTable(choice, ids(own), filled, ids(host))


def group(
    request_id: str,
    tables: Sequence[PictureTable],
    account: str = "",
    state: GroupState = GroupState.RUNNING,
    num_prompt: int = 20,
    num_output: int = 0,
    **counts: int,
) -> PictureGroup:
    """An unfinished request with these tables."""
    return PictureGroup(
        request_id,
        account,
        state,
        num_prompt,
        num_computed=sum(each.num_tokens for each in tables),
        num_output=num_output,
        max_tokens=256,
        num_rows=len(tables),
        num_cached=counts.get("num_cached", 0),
        num_preemptions=counts.get("num_preemptions", 0),
        num_swaps=counts.get("num_swaps", 0),
        arrival_time=0.0,
        tables=tuple(tables),
    )


def picture(
    number: int = 1,
    groups: Sequence[PictureGroup] = (),
    records: Sequence[Record] = (),
    num_blocks: int = 16,
    *,
    cached: Iterable[int] = (),
    fenced: Iterable[int] = (),
    pinned: Iterable[int] = (),
    num_host_blocks: int = 0,
    num_lost: int = 0,
) -> EnginePicture:
    """A picture, a tenth of a second after the one before it; pins hold a reference to each of their blocks."""
    references, findable = array("H", [0] * (num_blocks + 1)), bytearray(num_blocks + 1)
    pinned, cached = [*pinned], [*cached]
    tables = [each for one in groups for each in one.tables]
    for held in [pinned, *(array("I", each.block_ids) for each in tables)]:
        for block_id in held:
            references[block_id] += 1
    for block_id in (*pinned, *cached):
        findable[block_id] = 1
    used = {block_id for each in tables for block_id in array("I", each.host_block_ids)}
    return EnginePicture(
        number,
        1000.0 + number / 10,
        BLOCK_SIZE,
        num_blocks,
        references.tobytes(),
        bytes(findable),
        ids(fenced),
        ids(pinned),
        num_host_blocks,
        len(used),
        tuple(groups),
        tuple(records),
        num_lost,
        0.001,
    )
