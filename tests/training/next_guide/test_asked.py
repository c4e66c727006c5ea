"""150 questions of people who saw README and docs and never the corpus, with the topics that answer them."""

from __future__ import annotations

import json
from pathlib import Path

from training.guide.corpus import NEXT_CORPUS, load_corpus, normalized

ASKED = [json.loads(line) for line in Path(__file__).with_name("asked.jsonl").read_text("utf-8").splitlines()]


def test_every_question_has_topics_of_the_corpus() -> None:
    assert len(ASKED) == 150
    assert {topic for asked in ASKED for topic in asked["topics"]} <= set(load_corpus(NEXT_CORPUS).names)


def test_no_english_question_is_trained() -> None:
    trained = {normalized(text) for topic in load_corpus(NEXT_CORPUS).topics for text in topic.wordings}
    assert not trained & {normalized(asked["question"]) for asked in ASKED if asked["kind"] == "English"}
