"""The conversation of `quire chat`: questions and commands in, answers out."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from app.commands.answers.streamed_text import Messages
from app.commands.dialog.conversation import Conversation
from app.commands.dialog.responder import Responder
from app.commands.dialog.screens import Screen, print_error, print_wrapped
from app.commands.dialog.shown_answer import AnswerFigures, ShownAnswer
from app.commands.dialog.slash_commands import WORDS_THAT_QUIT, execute
from app.config.unicode_text import as_unicode
from app.contract.errors import ContextLengthExceeded, QuireError, error_line
from app.runtime.clock import Clock, monotonic


class Dialog:
    """One conversation with a responder. Main thread only.

    A failed answer prints one line and loses nothing: what has arrived stays, and may be continued. If it is not
    interactive, a failed answer ends the conversation.

    Attributes:
        responder: what answers.
        conversation: the turns so far.
        last: the figures of the last answer of this model in this conversation.
        num_tokens: tokens of all answers in this conversation; `has_uncounted`: some are estimated from pieces.
        file: the file of the conversation, once it was saved.
        is_unanswered: whether the last question got no text, and so the last answer is one to an earlier question.
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
        self.is_over = False
        self.take_up(conversation or Conversation())
        self._new_screen = new_screen
        self._is_interactive = is_interactive
        self._clock = clock

    def take_up(self, conversation: Conversation) -> None:
        """Go on with another conversation. Nothing is known of its answers, nor of a file that may be replaced."""
        self.conversation = conversation
        self.last: AnswerFigures | None = None
        self.num_tokens = 0
        self.has_uncounted = False
        self.file: Path | None = None
        self.is_unanswered = False

    def use(self, name: str) -> None:
        """Let another model answer from now on.

        Raises:
            QuireError: that is not possible; the model is the same as before.
        """
        self.responder.use(name)
        self.last = None

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
                print_error(error_line("quire", f"{error.message}{self._advice(error)}"))
            except KeyboardInterrupt:
                self.say("stopped")
            if self.is_over:
                return

    def _advice(self, error: QuireError) -> str:
        """Return the advice for a conversation that is too long for its model, also from a server's message."""
        is_full = isinstance(error, ContextLengthExceeded) or ContextLengthExceeded.code in error.message
        return "; /clear begins a new conversation" if is_full and self.conversation.turns else ""

    def greet(self, text: str) -> None:
        """Print which model answers, and how to use the dialog."""
        model = self.responder.model
        context = f", context {model.context:,} tokens" if model.context else ""
        self.tell(f"{model.name}{context}\n{text}")

    def say(self, text: str) -> None:
        """Print a note to the user, in brackets, so that it cannot be taken for an answer."""
        self.tell(f"({text})")

    def tell(self, text: str) -> None:
        """Print what is no answer; where nobody types, on standard error, so that a pipe has answers alone."""
        print_wrapped(text, None if self._is_interactive else sys.stderr)

    def ask(self, question: str) -> None:
        """Ask a question, and add it and its answer to the conversation.

        Raises:
            QuireError: the answer failed. What had arrived is kept.
        """
        self.is_unanswered = True
        self._receive(self.conversation.messages(question), lambda answer: self._add(question, answer))

    def go_on(self) -> None:
        """Continue the last answer where it ended. Only with one, and not while the last question is unanswered.

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
        if self._is_interactive and text.lower() in WORDS_THAT_QUIT:
            self.is_over = True
        elif text.startswith("//"):
            self.ask(text[1:])
        elif text.startswith("/"):
            execute(self, text)
        elif text:
            self.ask(text)

    def _add(self, question: str, answer: str) -> None:
        self.conversation.add(question, answer)
        self.is_unanswered = False

    def _count(self, figures: AnswerFigures) -> None:
        counted = figures.end.completion_tokens
        self.last = figures
        self.num_tokens += figures.num_pieces if counted is None else counted
        self.has_uncounted |= counted is None

    def _receive(self, messages: Messages, keep: Callable[[str], None]) -> None:
        """Show an answer while it is generated, and `keep` its text, however it ends."""
        shown = ShownAnswer(self._new_screen(), self._clock)
        try:
            shown.read(self.responder.answer(messages))
        finally:
            if shown.has_text:
                keep(shown.text)
            if shown.figures.has_ended or shown.has_text:
                self._count(shown.figures)
        if self._is_interactive and (words := shown.end_words()) is not None:
            self.say(f"{words}; /continue goes on" if shown.has_text else words)
