"""The page of quire.live.v1, made from the descriptions of the fields of messages (`app/contract/live_state.py`)."""

from __future__ import annotations

from typing import Any

import msgspec

from app.api.routes.live_socket import CLOSE_REASONS, HELLO_TIMEOUT_S, MAX_HELLO_BYTES
from app.contract.engine_figures import BlockFigures, EngineFigures, Percentiles
from app.contract.live_state import (
    HEADER,
    CellState,
    LiveBlocks,
    LiveChange,
    LiveCopy,
    LiveGroup,
    LiveHost,
    LiveShare,
    LiveState,
    LiveStep,
    LiveTable,
)
from app.streaming.live.account_feed import MAX_RECORDS
from app.streaming.live.live_room import MAX_WATCHERS

_STRUCTS: tuple[type[msgspec.Struct], ...] = (
    LiveState, LiveBlocks, LiveHost, LiveGroup, LiveTable, LiveStep, LiveShare, LiveCopy, LiveChange, EngineFigures,
    BlockFigures, Percentiles,
)  # fmt: skip
_MEANINGS = {
    CellState.FREE: "holds nothing",
    CellState.CACHED: "holds a prefix that requests can find, until it is needed",
    CellState.USED: "of one sequence",
    CellState.SHARED: "of several sequences",
    CellState.PINNED: "of a pinned prefix",
    CellState.FENCED: "released, but a step in flight may still access it",
}


def live_page() -> str:
    """Return the page, without its first line."""
    states = [f"| {state.value} | {state.name.lower()} | {_MEANINGS[state]} |" for state in CellState]
    head = _HEAD.format(
        watchers=MAX_WATCHERS,
        hello_s=HELLO_TIMEOUT_S,
        kib=MAX_HELLO_BYTES // 1024,
        header=HEADER.size,
        records=MAX_RECORDS,
        states="\n".join(states),
    )
    closes = [f"| {code} | {reason} |" for code, reason in CLOSE_REASONS.items()]
    parts = [head, *map(_fields, _STRUCTS), "## Close codes\n", "| close code | reason |", "|---|---|", *closes, _END]
    return "\n".join(parts)


def _fields(kind: type[msgspec.Struct]) -> str:
    """Return the section of one struct."""
    schema = msgspec.json.schema(kind)["$defs"][kind.__name__]
    about = " ".join(schema["description"].split())
    fields = msgspec.structs.fields(kind)
    described = schema.get("properties") or dict(zip((f.name for f in fields), _places(kind, schema), strict=True))
    rows = [f"| `{one.name}` | {described[one.name].get('description', '-')} |" for one in fields]
    return "\n".join([f"### {kind.__name__}\n", f"{about}\n", "| field | meaning |", "|---|---|", *rows, ""])


def _places(kind: type[msgspec.Struct], schema: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the fields of a struct that is a list on the wire; its tag, if it has one, comes before them."""
    places: list[dict[str, Any]] = schema["prefixItems"]
    return places[kind.__struct_config__.tag is not None :]


_HEAD = """# quire.live.v1

The engine as it works: each block of the KV cache, the requests and the steps, as they change. The path is `/live`, the
subprotocol `quire.live.v1`. Messages of the server are binary; the client sends nothing but, if it must, its key.
`app/client/live_picture.py` reads them in Python; `tests/vectors/quire_live.json` has messages and what they say.

The engine makes pictures of its books only while somebody watches, at most ten a second, and so that they cost less
than 1 % of its time. An engine at rest makes none: a new watcher gets the last one, and all get it again, once a
second, while its figures change. At most {watchers} may watch; when all places are taken, an account that has fewer of
them than another takes the newest of the one that has most.

## Keys

On a server with keys the handshake has one in a header, as every request. Browsers cannot set headers there: without
one, the first frame within {hello_s:g} s is the text `{{"t": "hello", "key": "..."}}`, of at most {kib} KiB. A client
that needs no key may send that frame too; any other frame closes the connection.

An account sees states and numbers of blocks of all requests; ids, counts of tokens and tables of its own only. No
message has text, and of an id only the first 17 characters, which tell answers apart and open none. `--live-view`
decides about the blocks of others:

| `--live-view` | blocks of other accounts |
|---|---|
| `own` | have no owner. What a step computed for others is one share, of owner 0, with its prompts in whole blocks |
| `all` | have owners, as one's own; who sends a request is still not said |
| `off` | there is no `/live` |

The default is `own` with keys and `all` without. With each of them the number of blocks of a request shows others, in
whole blocks, how long its prompt and its answer are.

`figures` are totals of all requests, the same for every key, as those of `/metrics` and `/v1/engine/events`, which
`--live-view` does not change. On a server with one other client totals tell of that client: when it asks, exactly how
many tokens its prompt and its answer have, and how many of the prompt were cached.

## Messages

All numbers are little endian. A message is:

| part | bytes | |
|---|---|---|
| kind | 1 | 0 whole, 1 difference to the message before |
| number | 4 | of the message on this account's view; a difference has the number after the last message's |
| length | 4 | of the JSON part |
| JSON | length | UTF-8, whole in each message |
| blocks | the rest | rows of varint, byte, varint |

A varint is an unsigned LEB128: seven bits a byte, the lowest first, and 0x80 in all but the last. The rows are:

| kind | first varint | byte | second varint |
|---|---|---|---|
| whole | how many blocks are alike, from block 1 on | state and flag | owner |
| difference | distance from the block before in the message, at first from 0 | state and flag | owner |

The owner is `n` of a group in the JSON part, 0 if there is none; a shared block has one of its owners. The byte is the
state, and 0x80 if the block has just become a copy of another one (the next message clears that):

| state | name | the block |
|---|---|---|
{states}

The first message is whole. Messages do not queue up: who reads slowly gets a whole one next instead of those it has
missed, and their records are not told again. At most {records:,} records wait; `lost` counts the others.

## JSON
"""

_END = """
The handshake is refused with an HTTP status and the usual body: 401 (a wrong key in a header), 403 (a foreign
`Origin`), 404 (`--live-view off`), 503 (draining).
"""
