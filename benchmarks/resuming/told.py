"""What one client was told of an answer, over all connections on which it read it. Sans I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


class WrongAnswer(Exception):
    """The server has told a client something that it must not tell; the text is one line."""


@dataclass
class ToldChoice:
    """One choice of an answer.

    Attributes:
        position: the number of its tokens that were told; of an answer that is not kept, of its chunks.
        content, reasoning: its texts.
        calls: the name and the arguments of each call of a tool.
        logprobs: the rows of log-probabilities.
        end: why it ended; None if it has not.
    """

    position: int = field(default=0, compare=False)
    content: str = ""
    reasoning: str = ""
    calls: list[list[str]] = field(default_factory=list)
    logprobs: list[Any] = field(default_factory=list)
    end: str | None = None

    def add_call(self, index: int, name: str | None, arguments: str) -> None:
        """Add a part of a call."""
        while len(self.calls) <= index:
            self.calls.append(["", ""])
        self.calls[index][0] += name or ""
        self.calls[index][1] += arguments


@dataclass
class Told:
    """What a client was told.

    Attributes:
        choices: by their numbers.
        num_tokens: the tokens of the whole answer, as the server counts them at its end.
        is_over: whether the answer has ended, and all of it was told.
    """

    choices: list[ToldChoice]
    num_tokens: int | None = None
    is_over: bool = False

    @classmethod
    def nothing(cls, num_choices: int) -> Told:
        """Return what a client has at first."""
        return cls([ToldChoice() for _ in range(num_choices)])

    @property
    def positions(self) -> list[int]:
        """The number of tokens that were told of each choice."""
        return [choice.position for choice in self.choices]

    def begins(self, whole: Told) -> bool:
        """Return whether this is the beginning of `whole`, as of a client that has left."""
        return all(
            (one.end is None or one == other)
            and other.content.startswith(one.content)
            and other.reasoning.startswith(one.reasoning)
            and one.logprobs == other.logprobs[: len(one.logprobs)]
            for one, other in zip(self.choices, whole.choices, strict=True)
        )

    def difference(self, whole: Told) -> str:
        """Say where this differs from the undisturbed answer; "" if it is the same."""
        for index, (one, other) in enumerate(zip(self.choices, whole.choices, strict=True)):
            for name in ("content", "reasoning", "calls", "logprobs", "end"):
                found, wanted = getattr(one, name), getattr(other, name)
                if found != wanted:
                    return f"choice {index} has another {name}: {_around(found, wanted)}"
        if self.num_tokens != whole.num_tokens:
            return f"it has {self.num_tokens} tokens instead of {whole.num_tokens}"
        return ""

    def take_chunk(self, chunk: Mapping[str, Any]) -> None:
        """Add a chunk of server-sent events, or a line of JSON.

        Raises:
            WrongAnswer: it is an error, or has a token a second time.
        """
        if "error" in chunk:
            raise WrongAnswer(f"the answer failed: {chunk['error'].get('message', chunk['error'])}")
        if usage := chunk.get("usage"):
            self.num_tokens = usage["completion_tokens"]
        after = [int(number) for number in chunk["after"].split(".")] if "after" in chunk else None
        for piece in chunk.get("choices", ()):
            choice, delta = self.choices[piece["index"]], piece["delta"]
            has_text = any(delta.get(name) for name in ("content", "reasoning_content", "tool_calls"))
            if after is None:
                choice.position += has_text  # of an answer that is not kept chunks are counted, not tokens
            elif has_text:
                _check_new(choice.position, after[piece["index"]], piece["index"])
            choice.content += delta.get("content") or ""
            choice.reasoning += delta.get("reasoning_content") or ""
            for call in delta.get("tool_calls", ()):
                function = call.get("function", {})
                choice.add_call(call["index"], function.get("name"), function.get("arguments", ""))
            if piece.get("logprobs"):
                choice.logprobs += piece["logprobs"].get("content") or ()
            choice.end = piece.get("finish_reason") or choice.end
        for choice, position in zip(self.choices, after or (), strict=False):
            choice.position = position

    def take_frame(self, frame: Mapping[str, Any]) -> None:
        """Add a frame of quire.v1.

        Raises:
            WrongAnswer: it is an error, or its number is not the next one.
        """
        kind = frame["t"]
        if kind == "delta":
            choice = self.choices[frame["i"]]
            if frame["n"] != choice.position + 1:
                raise WrongAnswer(f"choice {frame['i']} goes on with token {frame['n']} behind {choice.position}")
            choice.position = frame["n"] + max(frame["k"], 1) - 1
            choice.content += frame["x"]
            choice.reasoning += frame.get("r", "")
            choice.logprobs += frame.get("lp") or ()
            for call in frame.get("tool", ()):
                choice.add_call(call["k"], call.get("name"), call.get("a", ""))
        elif kind == "finish":
            self.choices[frame["i"]].end = frame["finish_reason"]
        elif kind == "done":
            self.num_tokens, self.is_over = frame["usage"]["completion_tokens"], True
        elif kind == "error":
            raise WrongAnswer(f"the answer failed: {frame['message']}")


def _check_new(had: int, position: int, index: int) -> None:
    if position <= had:
        raise WrongAnswer(f"choice {index} was told token {position} again behind {had}")


def _around(found: object, wanted: object) -> str:
    """Show both where they begin to differ."""
    if not isinstance(found, Sequence) or not isinstance(wanted, Sequence):
        return f"{found!r} instead of {wanted!r}"
    pairs = zip(found, wanted, strict=False)
    same = next((number for number, (one, other) in enumerate(pairs) if one != other), min(len(found), len(wanted)))
    first = max(0, same - 10)
    return f"at {same} {found[first : same + 20]!r} instead of {wanted[first : same + 20]!r}"
