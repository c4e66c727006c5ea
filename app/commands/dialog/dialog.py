"""The conversation of `quire chat`: questions and commands in, answers out."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from app.commands.answer_end import end_words
from app.commands.dialog.conversation import Conversation
from app.commands.dialog.responder import Responder
from app.commands.dialog.screens import Screen, print_wrapped
from app.commands.dialog.slash_commands import execute
from app.commands.streamed_text import AnswerEnd, Messages, TextStream
from app.config.unicode_text import as_unicode
from app.contract.errors import QuireError, error_line
from app.runtime.clock import Clock, monotonic


@dataclass(slots=True)
class AnswerFigures:
    """What `/stats` says about the last answer; `num_pieces` stands in for tokens that were not counted."""

    end: AnswerEnd
    num_pieces: int = 0
    first_s: float | None = None
    total_s: float = 0.0

    @property
    def rate(self) -> float | None:
        """Tokens a second after the first one; None if all came at once."""
        rest_s = self.total_s - (self.first_s or 0.0)
        count = (self.end.completion_tokens or self.num_pieces) - 1
        return count / rest_s if self.num_pieces > 1 and rest_s > 0 else None


class Dialog:
    """One conversation with a responder. Main thread only.

    A failed answer prints one line and loses nothing: what has arrived stays, and may be continued. If it is not
    interactive, a failed answer ends the conversation.

    Attributes:
        responder: what answers.
        conversation: the turns so far.
        last: the figures of the last answer.
        num_tokens: tokens of all answers.
        file: the file of the conversation, once it was saved or loaded.
        is_over: whether the user has ended it.
    """

    def __init__(
        self,
        responder: Responder,
        new_screen: Callable[[], Screen],
        conversation: Conversation | None = None,
        *,
        is_interactive: bool = False,
        clock: Clock = monotonic,
    ) -> None:
        self.responder = responder
        self.conversation = conversation or Conversation()
        self.last: AnswerFigures | None = None
        self.num_tokens = 0
        self.file: Path | None = None
        self.is_over = False
        self._new_screen = new_screen
        self._is_interactive = is_interactive
        self._clock = clock

    def run(self, texts: Iterator[str]) -> None:
        """Handle texts, one after the other, until they or the conversation end.

        Raises:
            QuireError: an answer failed, and the dialog is not interactive.
        """
        for text in texts:
            try:
                self._handle(text)
            except QuireError as error:
                if not self._is_interactive:
                    raise
                print(error_line("quire", error.message), file=sys.stderr)
            except KeyboardInterrupt:
                self.say("stopped")
            if self.is_over:
                return

    def greet(self, text: str) -> None:
        """Print which model answers, and how to use the dialog."""
        model = self.responder.model
        context = f", context {model.context:,} tokens" if model.context else ""
        print_wrapped(f"{model.name}{context}\n{text}")

    def say(self, text: str) -> None:
        """Print a note to the user, in brackets, so that it cannot be taken for an answer."""
        print_wrapped(f"({text})")

    def ask(self, question: str) -> None:
        """Ask a question, and add it and its answer to the conversation.

        Raises:
            QuireError: the answer failed. What had arrived is kept.
        """
        self._receive(self.conversation.messages(question), lambda answer: self.conversation.add(question, answer))

    def go_on(self) -> None:
        """Continue the last answer where it ended.

        Raises:
            QuireError: the continuation failed, or the model cannot continue. What had arrived is kept.
        """
        self._receive(self.conversation.messages(), self.conversation.extend_answer)

    def show_last_turn(self) -> None:
        """Show the last question and its answer again. Only with one."""
        question, answer = self.conversation.turns[-2:]
        print_wrapped("> " + question["content"].replace("\n", "\n... "))
        screen = self._new_screen()
        screen.write(answer["content"])
        screen.end()

    def _handle(self, text: str) -> None:
        as_unicode(text, "the question")
        if text.startswith("//"):
            self.ask(text[1:])
        elif text.startswith("/"):
            execute(self, text)
        elif text:
            self.ask(text)

    def _receive(self, messages: Messages, keep: Callable[[str], None]) -> None:
        """Show an answer while it is generated, and `keep` it, however it ends."""
        shown = _ShownAnswer(self._new_screen(), self._clock)
        try:
            end = shown.read(self.responder.answer(messages))
        finally:
            if shown.text:
                keep(shown.text)
            self.last = shown.figures
            self.num_tokens += shown.figures.end.completion_tokens or shown.figures.num_pieces
        if self._is_interactive and (words := end_words(end)) is not None:
            self.say(f"{words}; /continue goes on")


class _ShownAnswer:
    """Reads one answer onto a screen, and keeps its text and its figures."""

    def __init__(self, screen: Screen, clock: Clock) -> None:
        self.text = ""
        self.figures = AnswerFigures(AnswerEnd())
        self._screen = screen
        self._clock = clock

    def read(self, stream: TextStream) -> AnswerEnd:
        began = self._clock()
        try:
            with contextlib.closing(stream):
                while True:
                    delta = next(stream)
                    self._show(delta, began)
        except StopIteration as stop:
            self.figures.end = stop.value or AnswerEnd()
            return self.figures.end
        finally:
            self.figures.total_s = self._clock() - began
            if self.text or sys.exc_info()[0] is None:
                self._screen.end()

    def _show(self, delta: str, began: float) -> None:
        if delta:
            self.text += delta
            self.figures.num_pieces += 1
            if self.figures.first_s is None:
                self.figures.first_s = self._clock() - began
            self._screen.write(delta)
