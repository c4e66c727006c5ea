"""The choices of one response of OpenAI's API: all in which chats and completions differ on the wire."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, Protocol, TypeVar

from app.api.wire.answers import ChatAnswer, ChatChoice, ChunkChoice, CompletionAnswer, CompletionChoice
from app.contract.events import ChoiceEnd, TokenDelta
from app.contract.packed_logprobs import Logprobs

Part = TypeVar("Part")
"""The parts of a choice: texts, or of a chat what may stand beside them too."""


class ChoiceFormat(Protocol[Part]):
    """Makes the choices of one response, in chunks and in a JSON body. One owner, on the loop."""

    @property
    def chunk_object(self) -> Literal["chat.completion.chunk", "text_completion"]:
        """The type of a chunk."""

    @property
    def has_prompt_in_choice(self) -> bool:
        """Whether what is shown of a prompt is in the choice, and not beside it."""

    @property
    def reasoning_tokens(self) -> int | None:
        """The number of tokens of reasoning; None if they are not counted."""

    def first(self, choice: int) -> ChunkChoice | None:
        """Return the beginning of a choice in chunks, if it has one."""

    def choice(self, choice: int, part: Part | str) -> ChunkChoice:
        """Return a choice with a part."""

    def part(self, delta: TokenDelta) -> Part:
        """Return the part that new tokens complete."""

    def skip(self, delta: TokenDelta) -> None:
        """Take new tokens whose part nobody needs."""

    def rest(self, choice: int) -> Part:
        """Return the part that was held back until the end of a choice; one that is false if there is none."""

    def end(self, choice: int, end: ChoiceEnd) -> ChunkChoice:
        """Return a choice with its end."""

    def logprobs(self, choice: int, logprobs: Logprobs) -> dict[str, Any]:
        """Return the log-probabilities of the next tokens of a choice, for a chunk."""

    def logprobs_pieces(self, choice: int, logprobs: Logprobs) -> Iterator[bytes]:
        """Yield the log-probabilities of all tokens of a choice as JSON, in pieces that take a millisecond each."""

    def keep(self, delta: TokenDelta) -> None:
        """Keep new tokens for the JSON body."""

    def whole(self, choice: int, end: ChoiceEnd, **fields: Any) -> ChatChoice | CompletionChoice:
        """Return a choice whose tokens were kept."""

    def body(self, choices: list[Any], **fields: Any) -> ChatAnswer | CompletionAnswer:
        """Return the JSON body."""
