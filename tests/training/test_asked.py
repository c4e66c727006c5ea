"""Three times 150 questions of people who saw README and docs and never the corpus, with what a right answer says.

`topics` are those whose answers are right; in the later lists, those that guide gave where a judge called it right.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from training.guide.__main__ import SHIPPED
from training.guide.corpus import load_corpus, normalized
from training.guide.evaluate import make_answerer, topics_of
from training.guide.export import load_shipped
from training.guide.tokenizer import GuideTokenizer


def _read(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(__file__).with_name(name).read_text("utf-8").splitlines()]


LISTS = {name: _read(f"{name}.jsonl") for name in ("asked", "asked_later", "asked_last")}
MAX_ALIKE = 10  # of 100; the more wordings there are, the more of them somebody else has, too
ENOUGH = {"English": 90, "German": 15, "off-topic": 27}


@pytest.mark.parametrize("name", list(LISTS))
def test_the_questions_have_topics_of_the_corpus(name: str) -> None:
    assert len(LISTS[name]) == 150
    assert all(asked["expects"] for asked in LISTS[name])
    assert {topic for asked in LISTS[name] for topic in asked["topics"]} <= set(load_corpus().names)


@pytest.mark.parametrize("name", list(LISTS))
def test_hardly_a_question_is_trained_word_for_word(name: str) -> None:
    """Some are so plain that two people ask them alike."""
    topics = [topic for topic in load_corpus().topics if not topic.is_social]  # all say hello alike
    trained = {normalized(text) for topic in topics for text in topic.wordings}
    asked = {normalized(asked["question"]) for asked in LISTS[name] if asked["kind"] == "English"}
    assert len(trained & asked) <= MAX_ALIKE, trained & asked


@pytest.mark.long
@pytest.mark.parametrize("kind", list(ENOUGH))
@pytest.mark.parametrize("name", list(LISTS))
def test_most_are_answered_rightly(name: str, kind: str) -> None:
    """One of two answers is enough, but what is none of ours must be declined."""
    asked = [one for one in LISTS[name] if one["kind"] == kind]
    topic_of = {topic.answer: topic.name for topic in load_corpus().topics}
    answer = make_answerer(load_shipped(SHIPPED), GuideTokenizer(SHIPPED / "tokenizer.json"))
    given = [topics_of(text, topic_of) for text in answer([one["question"] for one in asked])]
    wrong = [
        (one["question"], topics)
        for one, topics in zip(asked, given, strict=True)
        if not set(topics) & set(one["topics"]) or (kind == "off-topic" and len(topics) > 1)
    ]
    assert len(asked) - len(wrong) >= ENOUGH[kind], wrong
