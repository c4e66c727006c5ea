"""How often the model is right about questions it never saw, as they are and misspelt.

Where no answer is likely enough, the model gives two. An answer is right when one of them is exactly the topic's, and
clean when each is exactly some topic's. Both compare whole texts, so one wrong byte counts.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from training.guide.augment import misspell
from training.guide.corpus import Corpus, HeldOut, hash_key
from training.guide.model import GuideModel
from training.guide.tokenizer import OR_ELSE, UNSURE, GuideTokenizer

MAX_ANSWER_TOKENS = 640

Answerer = Callable[[Sequence[str]], list[str]]  # questions to answers


@dataclass(frozen=True, slots=True)
class Outcome:
    """One question, what should have come and what came (`got` has one topic or two, or none for an unclean text)."""

    asked: HeldOut
    text: str
    got: tuple[str, ...]

    @property
    def is_right(self) -> bool:
        """Whether an answer is exactly the topic's."""
        return self.asked.topic in self.got


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
    def doubled(self) -> float:
        """Share of questions that got two answers."""
        return sum(len(outcome.got) == 2 for outcome in self.outcomes) / len(self.outcomes)

    @property
    def clean(self) -> float:
        """Share of answers that are exactly some topic's answer."""
        return sum(bool(outcome.got) for outcome in self.outcomes) / len(self.outcomes)


def evaluate(corpus: Corpus, answer: Answerer) -> list[Score]:
    """Ask every held-out question in every way."""
    known = [item for item in corpus.held_out if item.kind == "known"]
    ways = [
        ("known", known, [item.question for item in known]),
        ("known, typing error in the longest word", known, [with_typo(item.question) for item in known]),
    ]
    for kind in ("far", "near"):
        foreign = [item for item in corpus.held_out if item.kind == kind]
        ways.append((f"unknown, {kind}", foreign, [item.question for item in foreign]))
    topic_of = {topic.answer: topic.name for topic in corpus.topics}
    scores = []
    for name, items, questions in ways:
        texts = answer(questions)
        outcomes = [Outcome(item, text, topics_of(text, topic_of)) for item, text in zip(items, texts, strict=True)]
        scores.append(Score(name, tuple(outcomes)))
    return scores


def topics_of(text: str, topic_of: Mapping[str, str]) -> tuple[str, ...]:
    """Return the topics whose answers a text consists of: one, two, or none if there is anything else in it."""
    answers = text.removeprefix(UNSURE).split(OR_ELSE) if text.startswith(UNSURE) else [text]
    topics = tuple(topic_of.get(answer, "") for answer in answers)
    return topics if all(topics) else ()


def make_answerer(model: GuideModel, tokenizer: GuideTokenizer) -> Answerer:
    """Answer with our own model code."""

    def answer(questions: Sequence[str]) -> list[str]:
        prompts = [tokenizer.question(question) for question in questions]
        return [tokenizer.decode(ids) for ids in model.generate(prompts, MAX_ANSWER_TOKENS, tokenizer.markers.end)]

    return answer


def with_typo(question: str) -> str:
    """Misspell the longest word, which is mostly the one that decides."""
    words = question.split()
    longest = max(range(len(words)), key=lambda index: len(words[index]))
    words[longest] = misspell(words[longest], random.Random(hash_key(question)))
    return " ".join(words)
