"""150 questions of people who saw README and docs and never the corpus, with what a right answer says.

`topics` are those that answer a question; none where no answer of the last training did.
"""

from __future__ import annotations

import json
from pathlib import Path

from training.guide.corpus import NEXT_CORPUS, load_corpus, normalized

ASKED = [json.loads(line) for line in Path(__file__).with_name("asked.jsonl").read_text("utf-8").splitlines()]


def test_the_questions_have_topics_of_the_corpus() -> None:
    assert len(ASKED) == 150
    assert all(asked["expects"] for asked in ASKED)
    assert {topic for asked in ASKED for topic in asked["topics"]} <= set(load_corpus(NEXT_CORPUS).names)


def test_no_english_question_is_trained() -> None:
    topics = [topic for topic in load_corpus(NEXT_CORPUS).topics if not topic.is_social]  # all say hello alike
    trained = {normalized(text) for topic in topics for text in topic.wordings}
    assert not trained & {normalized(asked["question"]) for asked in ASKED if asked["kind"] == "English"}
