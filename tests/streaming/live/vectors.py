"""Makes tests/vectors/quire_live.json, which all decoders are held to: `python -m tests.streaming.live.vectors`."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from app.client.live_picture import LivePicture
from app.contract.engine_picture import (
    CopyRecord,
    EnginePicture,
    GroupState,
    StateRecord,
    StepRecord,
    StepShare,
)
from app.contract.live_state import HEADER, MessageKind
from app.streaming.live.account_view import AccountView
from app.streaming.live.picture_blocks import PictureBlocks
from tests.streaming.live.pictures import FIGURES, group, picture, table

PATH = Path(__file__).parents[2] / "vectors" / "quire_live.json"
ABOUT = (
    "Messages of quire.live.v1 in base64, and what they say: `state` is the JSON part, `runs` are all blocks after the "
    "message as [count, byte, owner]. The messages of a case come on one connection. A message whose "
    "number does not follow comes after some that the watcher has missed; it is whole."
)
MISSED = "missed"


def step(time: float, *shares: tuple[str, int, int, int], is_over: bool = False) -> StepRecord:
    """A step of 2.5 ms."""
    return StepRecord(time, 0.0025, tuple(StepShare(*share) for share in shares), is_over)


ONE = [
    picture(1, [group("chatcmpl-a", [table([1, 2], num_tokens=20)])], [step(1000.05, ("chatcmpl-a", 20, 0, 0))]),
    picture(2, [group("chatcmpl-a", [table([1, 2, 3], num_tokens=33)], num_output=13)], [
        step(1000.15, ("chatcmpl-a", 0, 1, 0)), step(1000.16, ("chatcmpl-a", 0, 3, 2), is_over=True),
    ]),
    picture(3, [group("chatcmpl-a", [table([1, 2, 3], num_tokens=40)], num_output=20)]),
    picture(4, [], [StateRecord(1000.35, "chatcmpl-a", "", GroupState.ENDED)], cached=[1, 2]),
]  # fmt: skip
SEVERAL = [
    group("chatcmpl-a", [table([1, 2, 3])], "anna", num_output=12),
    group("chatcmpl-b", [table([4, 5]), table([4, 6], choice=1)], "boris", num_output=4),
    group("chatcmpl-c", [], "boris", GroupState.WAITING),
    group("chatcmpl-d", [table([9, 10])], "anna", GroupState.PAUSED),
    group("chatcmpl-e", [], "clara", GroupState.PREEMPTED, num_preemptions=1),
]
SHARES = step(1000.05, ("chatcmpl-a", 0, 1, 0), ("chatcmpl-b", 17, 0, 0), ("chatcmpl-b", 0, 1, 1), is_over=True)
FORKED = [
    picture(1, [group("chatcmpl-f", [table([1, 2]), table([1, 2], choice=1)])]),
    picture(2, [group("chatcmpl-f", [table([1, 2]), table([1, 3], choice=1)])], [CopyRecord(1000.15, 2, 3)]),
    picture(3, [group("chatcmpl-f", [table([1, 2]), table([1, 3], choice=1)])]),
]
SWAPPED = group("chatcmpl-s", [table([], num_tokens=48, host=[1, 2, 3])], state=GroupState.SWAPPED, num_swaps=1)
LARGE = [
    picture(
        number,
        [group(f"chatcmpl-{i}", [table(range(1 + 390 * i, 1 + 390 * i + 300 + number))]) for i in range(60)],
        num_blocks=100_000,
        cached=range(90_001, 95_001),
    )
    for number in (1, 2)
]

CASES: Mapping[str, tuple[bool, str, Sequence[EnginePicture | str]]] = {
    "an engine at rest": (True, "", [picture(1), picture(2, cached=[3, 4, 9])]),
    "one answer from its prompt to its end": (True, "", ONE),
    "several requests, seen by everybody": (True, "anna", [picture(1, SEVERAL, [SHARES])]),
    "several requests, seen by one account of three": (False, "boris", [picture(1, SEVERAL, [SHARES])]),
    "two choices share blocks until one is copied": (True, "", FORKED),
    "released blocks are fenced, then cached or free": (
        True, "", [ONE[1], picture(2, fenced=[1, 2, 3], cached=[1, 2]), picture(3, cached=[1, 2])],
    ),
    "a pinned prefix that a request uses": (
        True, "", [picture(1, [group("chatcmpl-p", [table([1, 2, 5])])], pinned=[1, 2, 3])],
    ),
    "a request is swapped to host memory": (
        True, "", [
            picture(1, [group("chatcmpl-s", [table([1, 2, 3])])], num_host_blocks=8),
            picture(2, [SWAPPED], [StateRecord(1000.15, "chatcmpl-s", "", GroupState.SWAPPED)], num_host_blocks=8),
        ],
    ),
    "a slow watcher gets a whole message": (True, "", [ONE[0], MISSED, ONE[1], ONE[2]]),
    "records were lost": (True, "", [picture(1, num_lost=7)]),
    "100,000 blocks": (True, "", LARGE),
}  # fmt: skip


def messages_of(shows_all: bool, account: str, pictures: Sequence[EnginePicture | str]) -> list[bytes]:
    """The messages that a watcher of an account takes; it misses the one behind `MISSED`."""
    view, messages, has_last, misses = AccountView(account, shows_all=shows_all), [], False, False
    for each in pictures:
        if isinstance(each, str):
            misses = True
            continue
        made = view.next_message(PictureBlocks(each), each.records, each.num_lost_records, FIGURES)
        if not misses:
            messages.append(made.difference if has_last and made.difference is not None else made.whole())
        has_last, misses = not misses, False
    return messages


def described(message: bytes, seen: LivePicture) -> dict[str, Any]:
    """A message, and what `seen` has after it."""
    kind, number, length = HEADER.unpack_from(message)
    seen.receive(message)
    return {
        "base64": base64.b64encode(message).decode(),
        "kind": MessageKind(kind).name.lower(),
        "number": number,
        "state": json.loads(message[HEADER.size : HEADER.size + length]),
        "runs": seen.runs(),
    }


def vectors() -> str:
    """The text of the file: a line for each message."""
    cases = []
    for name, case in CASES.items():
        seen = LivePicture()
        lines = [json.dumps(described(message, seen), ensure_ascii=False) for message in messages_of(*case)]
        cases.append(f'{{"name": {json.dumps(name)}, "messages": [\n' + ",\n".join(lines) + "\n]}")
    return f'{{"about": {json.dumps(ABOUT)},\n"cases": [\n' + ",\n".join(cases) + "\n]}\n"


if __name__ == "__main__":
    PATH.write_text(vectors(), encoding="utf-8")
    print(f"wrote {PATH}")
