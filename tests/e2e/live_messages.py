"""Messages of quire.live.v1 of a made-up engine, in which a test decides what happens."""

import json
import struct
from dataclasses import dataclass, field
from typing import Any

FREE, CACHED, USED, SHARED, PINNED, FENCED = range(6)
NAMES = ("free", "cached", "used", "shared", "pinned", "fenced")


def varint(value: int) -> bytes:
    """Seven bits in each byte, the lowest first."""
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    return bytes([*encoded, value])


@dataclass
class MadeUpEngine:
    """Blocks and requests that a test sets, and the messages about them."""

    num_blocks: int
    block_size: int = 16
    time: float = 100.0
    groups: dict[int, dict[str, Any]] = field(default_factory=dict)
    records: list[list[Any]] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    host: dict[str, Any] = field(default_factory=lambda: {"total": 0, "used": 0, "owners": []})
    number: int = -1

    def __post_init__(self) -> None:
        self.cells = [(FREE, 0)] * self.num_blocks
        self._sent = list(self.cells)

    def set(self, state: int, ids: range | list[int], owner: int = 0) -> None:
        """Put blocks into a state."""
        for each in ids:
            self.cells[each - 1] = (state, owner)

    def add(self, number: int, state: str = "running", **fields: Any) -> None:
        """Add a request of this page's account, or change it."""
        own = {"id": f"chatcmpl-{number}", "prompt": 100, "cached": 0, "computed": 100, "output": 0, "limit": 256}
        plain = {"n": number, "own": True, "state": state, "rows": 1, "blocks": 0, "preemptions": 0, "swaps": 0}
        made = self.groups.get(number, plain | own | {"tables": []}) | {"state": state} | fields
        made["blocks"] = sum(sum(runs[1::2]) for _, _, runs in made["tables"])
        self.groups[number] = made

    def step(self, ms: float, *shares: tuple[int, int, int, int], over: bool = False) -> None:
        """A step with `(number, prompt, decode, accepted)` of each request."""
        self.time += ms / 1000
        self.records.append(["step", self.time, ms, over, [list(share) for share in shares]])

    def copy(self, source: int, target: int) -> None:
        """A block was copied."""
        self.records.append(["copy", self.time, source, target])

    def whole(self) -> bytes:
        """A message with all blocks."""
        runs = bytearray()
        at = 0
        while at < self.num_blocks:
            end = at
            while end < self.num_blocks and self.cells[end] == self.cells[at]:
                end += 1
            state, owner = self.cells[at]
            runs += varint(end - at) + bytes([state]) + varint(owner)
            at = end
        return self._message(0, bytes(runs))

    def difference(self) -> bytes:
        """A message with the blocks that have changed since the last one."""
        changes = bytearray()
        last = 0
        for at, (now, before) in enumerate(zip(self.cells, self._sent, strict=True)):
            if now != before:
                changes += varint(at + 1 - last) + bytes([now[0]]) + varint(now[1])
                last = at + 1
        return self._message(1, bytes(changes))

    def _message(self, kind: int, blocks: bytes) -> bytes:
        self.number += 1
        counts = {name: sum(state == number for state, _ in self.cells) for number, name in enumerate(NAMES)}
        states = [group["state"] for group in self.groups.values()]
        figures = {
            "model": "guide",
            "state": "ready",
            "running": states.count("running"),
            "waiting": states.count("waiting"),
            "paused": states.count("paused"),
            "blocks": {
                "total": self.num_blocks,
                "free": counts["free"],
                "cached": counts["cached"],
                "used": counts["used"] + counts["shared"] + counts["pinned"],
                "fenced": counts["fenced"],
                "host": self.host["used"],
            },
            "tokens_per_s": 0.0,
            "prompt_tokens_per_s": 0.0,
            "first_token_ms": None,
            "between_tokens_ms": None,
            "hit_rate": None,
            "step_ms": None,
            "step_target_ms": 50.0,
            "steps_over_target": 0,
            "preemptions": 0,
            "swaps": 0,
            "brownout": 0,
            "faults": 0,
        }
        state = {
            "time": self.time,
            "view": "all",
            "block_size": self.block_size,
            "num_blocks": self.num_blocks,
            "blocks": counts,
            "host": self.host,
            "groups": list(self.groups.values()),
            "records": self.records,
            "lost": 0,
            "figures": figures | self.figures,
        }
        self.records = []
        self._sent = list(self.cells)
        text = json.dumps(state).encode()
        return struct.pack("<BII", kind, self.number, len(text)) + text + blocks
