"""One answer while it is shown: its text so far, its figures, and why it is not complete."""

from __future__ import annotations

from dataclasses import dataclass

from app.commands.answers.streamed_text import AnswerEnd, TextStream, read_stream
from app.commands.dialog.screens import Screen
from app.contract.events import REPETITION, FinishReason
from app.runtime.clock import Clock, monotonic

CONTENT_FILTER = "content_filter"
"""The finish reason of OpenAI's API where a filter has ended an answer."""


@dataclass(slots=True)
class AnswerFigures:
    """The figures of the last answer for `/stats`; `num_pieces` stands in for tokens that were not counted.

    `has_ended`: whether it came to its end, rather than being stopped or breaking off.
    """

    end: AnswerEnd
    num_pieces: int = 0
    first_s: float | None = None
    total_s: float = 0.0
    has_ended: bool = False

    @property
    def rate(self) -> float | None:
        """Tokens a second after the first one; None if all came at once."""
        rest_s = self.total_s - (self.first_s or 0.0)
        count = (self.end.completion_tokens or self.num_pieces) - 1
        return count / rest_s if self.num_pieces > 1 and rest_s > 0 else None


class ShownAnswer:
    """Reads one answer onto a screen. One thread.

    Attributes:
        text: what has arrived.
        figures: its figures; its end is empty until the answer has ended.
    """

    def __init__(self, screen: Screen, clock: Clock = monotonic) -> None:
        self.text = ""
        self.figures = AnswerFigures(AnswerEnd())
        self._screen = screen
        self._clock = clock
        self._began = 0.0

    @property
    def has_text(self) -> bool:
        """Whether anything that can be seen has arrived: a model may think, and reach its limit before it answers."""
        return bool(self.text.strip())

    def read(self, stream: TextStream) -> None:
        """Show an answer to its end. Raises what the stream raises; what had arrived by then is shown to its end."""
        self._began = self._clock()
        try:
            self.figures.end = read_stream(stream, self._show)
            self.figures.has_ended = True
        except BaseException:
            if self.text:
                self._screen.end()
            raise
        else:
            self._screen.end()
        finally:
            self.figures.total_s = self._clock() - self._began

    def end_words(self) -> str | None:
        """Return why the answer is not complete; None if it is."""
        end = self.figures.end.choice
        if end is not None and end.reason == CONTENT_FILTER:
            return "the server's content filter has ended the answer"
        if end is None or end.reason != FinishReason.LENGTH:
            return None if self.has_text else "the model ended without a text"
        if end.stop_reason == REPETITION:
            return "the answer repeated itself and was ended"
        if self.has_text:
            return "the answer has reached its limit of tokens"
        return "the limit of tokens was reached before the answer began; --max-tokens sets a higher one"

    def _show(self, piece: str) -> None:
        if self.figures.first_s is None:  # of a thought, too, which is not shown but counted
            self.figures.first_s = self._clock() - self._began
        if piece:
            self.text += piece
            self.figures.num_pieces += 1
            self._screen.write(piece)
