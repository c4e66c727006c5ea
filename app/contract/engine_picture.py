"""The picture that the engine makes of its books for the live view, as plain data.

Only its watchers cost anything: the engine copies, at a rate that the cost of copying decides; everything else happens
on the event loop's side.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Watch:
    """Begin, or with `on` false end, to make pictures; idempotent."""

    on: bool


class GroupState(StrEnum):
    """The states of a request in a picture; `ended` is in records alone."""

    WAITING = "waiting"
    RUNNING = "running"
    PAUSED = "paused"  # its readers take no tokens
    PREEMPTED = "preempted"  # lost its blocks, will compute them again
    SWAPPED = "swapped"  # its blocks are in host memory
    ENDED = "ended"


class PictureTable(NamedTuple):
    """The block table of one open sequence: ids as `array('I')`, machine byte order, and how many tokens they hold."""

    choice: int
    block_ids: bytes
    num_tokens: int
    host_block_ids: bytes = b""


class PictureGroup(NamedTuple):
    """An unfinished request. Token counts; `num_output` and `num_computed` are sums over its open sequences.

    In `num_computed` the prompt counts once.
    """

    request_id: str
    account: str
    state: GroupState
    num_prompt: int
    num_computed: int
    num_output: int
    max_tokens: int
    num_rows: int
    num_cached: int  # of the prompt, found in the prefix cache when it first started
    num_preemptions: int
    num_swaps: int
    arrival_time: float
    tables: tuple[PictureTable, ...]


class StepShare(NamedTuple):
    """One request's part of a step: tokens of its prompt, decoded ones, and besides accepted draft tokens."""

    request_id: str
    num_prompt: int
    num_decode: int
    num_accepted: int


class StepRecord(NamedTuple):
    """A step that was computed: when it began (monotonic seconds), its duration, and whose tokens were in it."""

    start_time: float
    duration_s: float
    shares: tuple[StepShare, ...]
    is_over_target: bool  # it took longer than --itl-target


class CopyRecord(NamedTuple):
    """A block was copied before it was written, since others share it."""

    time: float
    source: int
    target: int


class StateRecord(NamedTuple):
    """A request changed its state."""

    time: float
    request_id: str
    account: str
    state: GroupState


Record = StepRecord | CopyRecord | StateRecord


@dataclass(frozen=True, slots=True)
class EnginePicture:
    """The engine's books at the end of a turn. Block ids are 1..num_blocks; index 0 of the arrays is unused.

    `references` is an `array('H')` (at most 65,535), `findable` a byte for each block; both of num_blocks + 1 entries.
    `fenced` and `pinned` are block ids as `array('I')`; a block may have several pins. `num_lost_records`
    counts records that were dropped since the picture before, because there were too many. `duration_s` is the
    processor time that making it took.
    """

    number: int
    time: float
    block_size: int
    num_blocks: int
    references: bytes
    findable: bytes
    fenced: bytes
    pinned: bytes
    num_host_blocks: int
    num_used_host_blocks: int
    groups: tuple[PictureGroup, ...]
    records: tuple[Record, ...]
    num_lost_records: int
    duration_s: float
