"""A small part of the corpus with a tokenizer of its own, for tests that need no more."""

from __future__ import annotations

import dataclasses
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

from training.guide.corpus import UNKNOWN, Corpus, load_corpus
from training.guide.tokenizer import GuideTokenizer, train_tokenizer

NUM_TOPICS, NUM_WORDINGS = 6, 20


@lru_cache
def small_corpus() -> Corpus:
    """Return some topics, the rejection among them, with some of their wordings."""
    whole = load_corpus()
    topics = [*whole.topics[:NUM_TOPICS], *(topic for topic in whole.topics if topic.name == UNKNOWN)]
    names = {topic.name for topic in topics}
    return Corpus(
        tuple(dataclasses.replace(topic, wordings=topic.wordings[:NUM_WORDINGS]) for topic in topics),
        tuple(item for item in whole.held_out if item.topic in names),
    )


@lru_cache
def small_tokenizer() -> GuideTokenizer:
    """Return a tokenizer of 1,024 tokens, trained on `small_corpus`."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "tokenizer.json"
        train_tokenizer(small_corpus(), 1024, 0, file)
        return GuideTokenizer(file)
