"""One conversation in the terminal: its system message, and its questions and answers in turn."""

from __future__ import annotations

from dataclasses import dataclass, field

Message = dict[str, str]


@dataclass(slots=True)
class Conversation:
    """The turns so far. An answer may be missing at the end while it is generated, never elsewhere.

    Attributes:
        system: the system message; empty without one.
        turns: messages of the roles `user` and `assistant`, one after the other.
    """

    system: str = ""
    turns: list[Message] = field(default_factory=list)

    def messages(self, question: str | None = None) -> list[Message]:
        """Return the messages to send: the system message, the turns, and the next question if there is one."""
        start = [{"role": "system", "content": self.system}] if self.system else []
        end = [] if question is None else [{"role": "user", "content": question}]
        return [*start, *self.turns, *end]

    def add(self, question: str, answer: str) -> None:
        """Add a turn."""
        self.turns += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]

    @property
    def last_answer(self) -> str | None:
        """The last answer; None before the first one."""
        return self.turns[-1]["content"] if self.turns else None

    def extend_answer(self, text: str) -> None:
        """Append to the last answer. Only with one."""
        self.turns[-1] = {"role": "assistant", "content": self.turns[-1]["content"] + text}
