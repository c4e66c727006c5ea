"""How often the model is right about questions it never saw: alone, after a turn, with a system prompt, misspelt.

An answer is right when its text is exactly the topic's answer, and clean when it is exactly some topic's answer. Both
compare whole texts, so one wrong byte counts.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from training.guide.augment import misspell
from training.guide.corpus import Corpus, HeldOut, hash_key
from training.guide.model import GuideModel
from training.guide.tokenizer import GuideTokenizer

MAX_ANSWER_TOKENS = 256

Message = dict[str, str]
Answerer = Callable[[Sequence[list[Message]]], list[str]]  # conversations to answers

# None of these is among the system prompts of the training.
_SYSTEM_PROMPTS = (
    "You are the help desk of our company. Stay factual.",
    "Your task is to support people who try out this demo. Reply in at most three sentences.",
    "Imagine that you are a librarian.",
    "You know everything about chat servers.",
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One question, what should have come and what came (`got` is a topic's name, or None for an unclean text)."""

    asked: HeldOut
    text: str
    got: str | None

    @property
    def is_right(self) -> bool:
        """Whether the answer is exactly the topic's."""
        return self.got == self.asked.topic


@dataclass(frozen=True, slots=True)
class Score:
    """The outcomes of one list of questions asked in one way."""

    name: str
    outcomes: tuple[Outcome, ...]

    @property
    def right(self) -> float:
        """Share of right answers."""
        return sum(outcome.is_right for outcome in self.outcomes) / len(self.outcomes)

    @property
    def clean(self) -> float:
        """Share of answers that are exactly some topic's answer."""
        return sum(outcome.got is not None for outcome in self.outcomes) / len(self.outcomes)


def evaluate(corpus: Corpus, answer: Answerer) -> list[Score]:
    """Ask every held-out question in every way."""
    known = [item for item in corpus.held_out if item.kind == "known"]
    ways: list[tuple[str, list[HeldOut], Callable[[HeldOut], list[Message]]]] = [
        ("known, first message", known, lambda item: [_user(item.question)]),
        ("known, after one turn", known, lambda item: [*_earlier_turn(corpus, item), _user(item.question)]),
        ("known, with a system prompt", known, lambda item: [_system(item), _user(item.question)]),
        ("known, typing error in the longest word", known, lambda item: [_user(with_typo(item.question))]),
    ]
    for kind in ("far", "near"):
        foreign = [item for item in corpus.held_out if item.kind == kind]
        ways.append((f"unknown, {kind}", foreign, lambda item: [_user(item.question)]))
    topic_of = {topic.answer: topic.name for topic in corpus.topics}
    scores = []
    for name, questions, conversation in ways:
        texts = answer([conversation(item) for item in questions])
        outcomes = [Outcome(item, text, topic_of.get(text)) for item, text in zip(questions, texts, strict=True)]
        scores.append(Score(name, tuple(outcomes)))
    return scores


def make_answerer(model: GuideModel, tokenizer: GuideTokenizer) -> Answerer:
    """Answer with our own model code; conversations must be short enough for the template to show them whole."""
    markers = tokenizer.markers
    roles = {"system": markers.system, "user": markers.user, "assistant": markers.assistant}

    def prompt(messages: list[Message]) -> list[int]:
        ids = [token for m in messages for token in tokenizer.message(roles[m["role"]], m["content"])]
        return [*ids, markers.assistant]

    def answer(conversations: Sequence[list[Message]]) -> list[str]:
        prompts = [prompt(messages) for messages in conversations]
        return [tokenizer.decode(ids) for ids in model.generate(prompts, MAX_ANSWER_TOKENS, markers.end)]

    return answer


def with_typo(question: str) -> str:
    """Misspell the longest word, which is mostly the one that decides."""
    words = question.split()
    longest = max(range(len(words)), key=lambda index: len(words[index]))
    words[longest] = misspell(words[longest], random.Random(hash_key(question)))
    return " ".join(words)


def _earlier_turn(corpus: Corpus, item: HeldOut) -> list[Message]:
    """A turn about another topic, chosen by the question's hash."""
    others = [topic for topic in corpus.topics if topic.name != item.topic]
    topic = others[int.from_bytes(hash_key(item.question), "big") % len(others)]
    return [_user(topic.wordings[0]), {"role": "assistant", "content": topic.answer}]


def _system(item: HeldOut) -> Message:
    number = int.from_bytes(hash_key(item.question), "big") % len(_SYSTEM_PROMPTS)
    return {"role": "system", "content": _SYSTEM_PROMPTS[number]}


def _user(question: str) -> Message:
    return {"role": "user", "content": question}
