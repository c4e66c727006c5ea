"""Where the client of a kept answer is, in each of its choices: what it has, and which number it sends to go on.

A position is the number of tokens that the client has. What the engine tells without a token, and what a parser holds
back until the end of a choice, come after the last token, and have positions of their own above it: a client that has
all tokens may have them or not.
"""

from __future__ import annotations

from collections.abc import Sequence

from app.api.wire.resumable_answer import Resumable
from app.contract.errors import InvalidValue
from app.contract.events import TokenDelta
from app.streaming.kept.live_stream import LiveStream

_MAX_DIGITS = 9  # of a position


class Positions:
    """The positions of a client that has had everything up to `after`, while it is told the rest. One owner.

    Attributes:
        after: see above.
    """

    __slots__ = ("_told", "after")

    def __init__(self, after: Sequence[int]) -> None:
        self.after = tuple(after)
        self._told = [0] * len(self.after)  # also of what the client has had

    def take(self, delta: TokenDelta) -> bool:
        """Note the next delta of a choice; return whether it is new to the client."""
        choice = delta.choice
        self._told[choice] = told = delta.first - 1 + (len(delta.token_ids) or 1)
        return told > self.after[choice]

    def take_rest(self, choice: int) -> bool:
        """Note what a parser held back until the end of a choice; return whether it is new to the client."""
        self._told[choice] += 1
        return self._told[choice] > self.after[choice]

    def of(self, choice: int) -> int:
        """Return the position in a choice."""
        return max(self._told[choice], self.after[choice])

    def encode(self) -> bytes:
        """Return the positions as clients get and send them."""
        if len(self.after) == 1:  # for nearly every token
            return b"%d" % self.of(0)
        return position_text([*map(self.of, range(len(self.after)))]).encode()


def position_text(positions: Sequence[int]) -> str:
    """Return positions as clients get and send them: `17.12`."""
    return ".".join(map(str, positions))


def read_position(text: str, stream: LiveStream) -> list[int]:
    """Return a client's positions, joined by dots, as the stream has told it.

    Raises:
        InvalidValue: they are none, of another number of choices, or were not told yet.
    """
    parts, num_choices = text.split("."), len(stream.transcripts)
    if len(parts) != num_choices or not all(map(_is_position, parts)):
        numbers = "a number" if num_choices == 1 else f"{num_choices} numbers, one for each choice, joined by dots"
        raise InvalidValue(
            f"after is {text[:100]!r}; send the `id` or `after` of the last event that you have: {numbers}, or `end`.",
            param="after",
        )
    return check_positions([*map(int, parts)], stream)


def check_positions(positions: Sequence[int], stream: LiveStream) -> list[int]:
    """Return a client's positions, as the stream has told it.

    Raises:
        InvalidValue: they are of another number of choices, or were not told yet.
    """
    if len(positions) != len(stream.transcripts):
        raise InvalidValue(
            f"after has {len(positions)} positions; send one for each of the {len(stream.transcripts)} choices.",
            param="after",
        )
    has_parsers = Resumable.of(stream).request.answer is not None
    for choice, (position, transcript) in enumerate(zip(positions, stream.transcripts, strict=True)):
        last = transcript.last + (has_parsers and choice in stream.ends)
        if position > last:
            raise InvalidValue(
                f"after is {position} for choice {choice}, which has been told up to {last}; send the position that "
                "you have.",
                param="after",
            )
    return [*positions]


def _is_position(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS
