"""The messages of quire.live.v1, the live view: the JSON part, and the numbers of the binary one.

`docs/reference/live.md` is made from the descriptions here. `streaming/live` writes the messages, and
`client/live_picture.py` and the chat page read them.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from app.contract.engine_figures import EngineFigures
from app.contract.engine_picture import GroupState

LIVE_PROTOCOL = "quire.live.v1"
HEADER = struct.Struct("<BII")
"""Kind, number of the message, and the length of its JSON part in bytes."""


class MessageKind(IntEnum):
    """The first byte of a message."""

    WHOLE = 0
    DIFFERENCE = 1


class CellState(IntEnum):
    """The state of a block: the low bits of its byte."""

    FREE = 0
    CACHED = 1
    USED = 2
    SHARED = 3
    PINNED = 4
    FENCED = 5


COPIED = 0x80
"""The bit of a block that has just become the copy of another one; the next message clears it."""
NO_OWNER = 0
"""The owner of blocks that nobody holds, and of those of other accounts, with `--live-view own`."""


class LiveBlocks(msgspec.Struct, frozen=True):
    """How many blocks are in each state."""

    free: Annotated[int, Meta(description="hold nothing")]
    cached: Annotated[int, Meta(description="hold a prefix that requests can find, until they are needed")]
    used: Annotated[int, Meta(description="of one sequence")]
    shared: Annotated[int, Meta(description="of several sequences, which have the same tokens up to here")]
    pinned: Annotated[int, Meta(description="of a pinned prefix, which stays; sequences may use them too")]
    fenced: Annotated[int, Meta(description="released, but a step in flight may still access them")]


class LiveHost(msgspec.Struct, frozen=True):
    """The blocks in host memory: of swapped requests, and of earlier ones that can be found."""

    total: Annotated[int, Meta(description="blocks that fit, 0 without `--swap-space`")]
    used: Annotated[int, Meta(description="blocks in use, of all accounts")]
    owners: Annotated[list[tuple[int, int]], Meta(description="`[n, count]`, of the groups that are shown with blocks")]


class LiveTable(msgspec.Struct, frozen=True, array_like=True):
    """The blocks of one sequence, in the order of its tokens: `[choice, tokens, runs]`."""

    choice: Annotated[int, Meta(description="the number of the choice")]
    tokens: Annotated[int, Meta(description="tokens that the blocks hold; the last one may have room")]
    runs: Annotated[list[int], Meta(description="first id, count, first id, count, ...")]


class LiveGroup(msgspec.Struct, frozen=True, kw_only=True):
    """An unfinished request. Fields from `id` on are there for the account's own requests only."""

    n: Annotated[int, Meta(description="its number for this account, from 1, never used again while somebody watches")]
    own: Annotated[bool, Meta(description="whether it is a request of this account")]
    state: Annotated[GroupState, Meta(description="waiting, running, paused, preempted or swapped")]
    rows: Annotated[int, Meta(description="its sequences in the batch; 0 while it waits or is paused")]
    blocks: Annotated[int, Meta(description="blocks that it holds, shared ones included, once each")]
    preemptions: Annotated[int, Meta(description="how often it lost its blocks")]
    swaps: Annotated[int, Meta(description="those times that its blocks were kept in host memory")]
    id: Annotated[
        str | UnsetType,
        Meta(description="the beginning of its answer's id, as in the log"),
    ] = UNSET
    prompt: Annotated[int | UnsetType, Meta(description="tokens of the prompt")] = UNSET
    cached: Annotated[int | UnsetType, Meta(description="those that were found in the prefix cache")] = UNSET
    computed: Annotated[int | UnsetType, Meta(description="tokens in the KV cache, all sequences")] = UNSET
    output: Annotated[int | UnsetType, Meta(description="generated tokens, all sequences")] = UNSET
    limit: Annotated[int | UnsetType, Meta(description="the most tokens of a sequence's answer")] = UNSET
    tables: Annotated[list[LiveTable] | UnsetType, Meta(description="the blocks of each open sequence")] = UNSET


class LiveShare(msgspec.Struct, frozen=True, array_like=True):
    """A group's part of a step: `[n, prompt, decode, accepted]`.

    Those of other accounts are one share of owner 0, their prompt tokens in whole blocks: all with `--live-view own`,
    with `all` those whose request is in no group of the message.
    """

    n: Annotated[int, Meta(description="the number of the group")]
    prompt: Annotated[int, Meta(description="tokens of its prompt")]
    decode: Annotated[int, Meta(description="decoded tokens")]
    accepted: Annotated[int, Meta(description="draft tokens that were accepted, beside these")]


class LiveStep(msgspec.Struct, frozen=True, array_like=True, tag="step"):
    """A step: `["step", at, ms, over, shares]`."""

    at: Annotated[float, Meta(description="when it began")]
    ms: Annotated[float, Meta(description="its duration in milliseconds")]
    over: Annotated[bool, Meta(description="whether it took longer than `--itl-target`")]
    shares: Annotated[list[LiveShare], Meta(description="`[n, prompt, decode, accepted]` of each group")]


class LiveCopy(msgspec.Struct, frozen=True, array_like=True, tag="copy"):
    """A block was copied because others share it: `["copy", at, source, target]`; only where blocks are shown."""

    at: Annotated[float, Meta(description="when")]
    source: Annotated[int, Meta(description="the id of the shared block")]
    target: Annotated[int, Meta(description="the id of the copy")]


class LiveChange(msgspec.Struct, frozen=True, array_like=True, tag="state"):
    """A group changed its state, or ended: `["state", at, n, state]`."""

    at: Annotated[float, Meta(description="when")]
    n: Annotated[int, Meta(description="the number of the group")]
    state: Annotated[GroupState, Meta(description="the new state; `ended` for one that is in no message any more")]


class LiveState(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON part of a message, whole in each of them."""

    time: Annotated[float, Meta(description="when the picture was made; all times are seconds of one clock")]
    view: Annotated[str, Meta(description="`own` or `all` (`--live-view`): whose blocks have an owner")]
    block_size: Annotated[int, Meta(description="tokens of a block")]
    num_blocks: Annotated[int, Meta(description="blocks of the KV cache; their ids are 1 to this")]
    blocks: Annotated[LiveBlocks, Meta(description="how many are in each state")]
    host: Annotated[LiveHost, Meta(description="blocks in host memory")]
    groups: Annotated[list[LiveGroup], Meta(description="the unfinished requests")]
    records: Annotated[
        list[LiveStep | LiveCopy | LiveChange], Meta(description="what happened since the last picture, in order")
    ]
    lost: Annotated[int, Meta(description="records that were dropped since then, because there were too many")]
    figures: Annotated[EngineFigures, Meta(description="as `GET /v1/engine/events` sends them")]


def live_schema() -> dict[str, object]:
    """Return the JSON schema of the JSON part."""
    return msgspec.json.schema(LiveState)
