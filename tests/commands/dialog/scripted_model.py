"""A responder whose answers are written before."""

from collections.abc import Sequence

from app.commands.answers.streamed_text import AnswerEnd, Messages, TextStream
from app.commands.dialog.responder import ModelChoice
from app.contract.errors import ConfigurationError
from app.contract.events import ChoiceEnd


def ended(
    reason: str, stop_reason: str | None = None, prompt_tokens: int | None = None, completion_tokens: int | None = None
) -> AnswerEnd:
    """The end of an answer, for the reason that a server gives."""
    return AnswerEnd(ChoiceEnd(reason, stop_reason), prompt_tokens, completion_tokens)


class ScriptedModel:
    """Answers with scripted pieces: texts, an exception, or an `AnswerEnd` at the end. Keeps each request."""

    def __init__(self, *answers: Sequence[str | BaseException | AnswerEnd]) -> None:
        self.answers = list(answers)
        self.requests: list[list[dict[str, str]]] = []
        self.model = ModelChoice("scripted", 100)

    def answer(self, messages: Messages) -> TextStream:
        self.requests.append(list(messages))
        for piece in self.answers.pop(0):
            if isinstance(piece, BaseException):
                raise piece
            if isinstance(piece, AnswerEnd):
                return piece
            yield piece
        return ended("stop")

    def models(self) -> Sequence[ModelChoice]:
        return [ModelChoice("scripted", 100), ModelChoice("other\x1b[2J")]

    def use(self, name: str) -> None:
        if name != "other":
            raise ConfigurationError(f"no model {name}")
        self.model = ModelChoice(name)
