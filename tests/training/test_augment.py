"""Question variation: repeatable, never empty, and every topic equally often."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from training.guide.augment import TOPIC_RATES, Augmenter, misspell
from training.guide.corpus import UNKNOWN, Corpus, load_corpus
from training.guide.questions import UNKNOWN_SLOTS, Questions
from training.guide.unknown import ForeignQuestions


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return load_corpus()


def test_the_same_seed_gives_the_same_questions(corpus: Corpus) -> None:
    first, second = (Questions(corpus, random.Random(5)) for _ in range(2))
    assert [first.ask(first.next_topic()) for _ in range(50)] == [second.ask(second.next_topic()) for _ in range(50)]


def test_one_round_samples_every_topic_once_and_unknown_more_often(corpus: Corpus) -> None:
    questions = Questions(corpus, random.Random(0))
    num_sampled = len(corpus.topics) - 1 + UNKNOWN_SLOTS
    counts = Counter(corpus.names[questions.next_topic()] for _ in range(num_sampled))
    assert counts.pop(UNKNOWN) == UNKNOWN_SLOTS
    assert set(counts.values()) == {1}


@pytest.mark.parametrize("question", ["?", "Hi", "What is SSE?", "How do I start the server?"])
def test_a_varied_question_is_never_empty(question: str) -> None:
    augmenter, rng = Augmenter(), random.Random(0)
    assert all(augmenter.vary(question, rng, TOPIC_RATES) for _ in range(300))


def test_a_typing_error_changes_a_long_word_by_one_letter_at_most() -> None:
    rng = random.Random(0)
    assert misspell("api", rng) == "api"
    assert all(abs(len(misspell("server", rng)) - 6) <= 1 for _ in range(100))


def test_generated_foreign_questions_use_no_word_of_held_out_ones(corpus: Corpus) -> None:
    foreign = ForeignQuestions(corpus.held_out)
    held_out = {word for item in corpus.held_out if item.kind == "far" for word in item.question.lower().split()}
    assert not held_out & {word.lower() for word in foreign.vocabulary}
