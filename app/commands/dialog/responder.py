"""What answers in `quire chat`: a model in this process, or a server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from app.commands.answers.streamed_text import Messages, TextStream


class ModelChoice(NamedTuple):
    """A model that can be chosen: its name, and its context in tokens where it is known."""

    name: str
    context: int | None = None


class Responder(Protocol):
    """Answers conversations with one model, and can change to another. Main thread only."""

    @property
    def model(self) -> ModelChoice:
        """The model that answers."""

    def answer(self, messages: Messages) -> TextStream:
        """Yield the next answer, or more of the answer that the conversation ends with.

        Raises:
            QuireError: there is no answer, or it broke off; the same or another one may be asked for.
        """

    def models(self) -> Sequence[ModelChoice]:
        """Return the models that `use` takes.

        Raises:
            QuireError: they cannot be listed now.
        """

    def use(self, name: str) -> None:
        """Answer with another model from now on.

        Raises:
            QuireError: that is not possible; the model is the same as before.
        """
