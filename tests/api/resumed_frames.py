"""What a client of quire.v1 has of an answer, over all sockets on which it read it."""

from __future__ import annotations

from typing import Any


def position_behind(frame: dict[str, Any]) -> int:
    return int(frame["n"] + max(frame["k"], 1) - 1)


def joined(frames: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """What a client has of each choice: text, reasoning, calls and rows joined, and its end. Checks the numbers."""
    choices: dict[int, dict[str, Any]] = {}
    for frame in frames:
        if frame["t"] == "accepted":
            choices |= {
                i: {"position": after, "x": "", "r": "", "lp": [], "tool": []} for i, after in enumerate(frame["after"])
            }
        elif frame["t"] == "delta":
            has = choices[frame["i"]]
            assert frame["n"] == has["position"] + 1
            has["position"] = position_behind(frame)
            has["x"] += frame["x"]
            has["r"] += frame.get("r", "")
            has["lp"] += frame.get("lp", [])
            has["tool"] += frame.get("tool", [])
        elif frame["t"] == "finish":
            choices[frame["i"]] |= {name: frame[name] for name in ("n", "finish_reason")}
    for has in choices.values():
        has["tool"] = [*calls_of(has["tool"]).items()]
    return choices


def calls_of(pieces: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    calls: dict[int, dict[str, Any]] = {}
    for piece in pieces:
        call = calls.setdefault(piece["k"], {"a": ""})
        call["a"] += piece.get("a", "")
        call |= {name: piece[name] for name in ("id", "name") if name in piece}
    return calls
