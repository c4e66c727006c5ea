"""An endless, fair supply of training questions: every topic equally often, each time in another form."""

from __future__ import annotations

import random

from training.guide.augment import PHRASE_RATES, SOCIAL_RATES, TOPIC_RATES, Augmenter
from training.guide.corpus import UNKNOWN, Corpus, Topic, read_words
from training.guide.unknown import ForeignQuestions

UNTOUCHED = 0.15  # share of wordings shown as they are written
FROM_KEYWORDS = 0.3
FOREIGN_MADE_UP = 0.7  # the rest is from the written list
UNKNOWN_SLOTS = 20  # places of `unknown` in one round; every other topic has one


class Questions:
    """Draws topics from a shuffled bag and makes a question for each."""

    def __init__(self, corpus: Corpus, rng: random.Random) -> None:
        self._topics = list(corpus.topics)
        self._ours = [topic for topic in self._topics if not topic.is_social]
        self._rng = rng
        self._augmenter = Augmenter()
        self._foreign = ForeignQuestions(corpus.held_out)
        self._frames = read_words("phrase_frames", separator="|")
        self._bag: list[int] = []

    @property
    def foreign_vocabulary(self) -> list[str]:
        """Words of the made-up foreign questions, for the tokenizer."""
        return self._foreign.vocabulary

    def next_topic(self) -> int:
        """Draw the index of the next topic: independent draws would starve some topics, a bag does not."""
        if not self._bag:
            for index, topic in enumerate(self._topics):
                self._bag += [index] * (UNKNOWN_SLOTS if topic.name == UNKNOWN else 1)
            self._rng.shuffle(self._bag)
        return self._bag.pop()

    def ask(self, index: int) -> str:
        """Make a question whose answer is that of topic `index`."""
        rng, topic = self._rng, self._topics[index]
        if topic.name == UNKNOWN and rng.random() < FOREIGN_MADE_UP:
            model = rng.choice(self._ours) if rng.random() < 0.6 else topic
            question = self._foreign.make(rng, rng.choice(model.wordings))
            return question if rng.random() < UNTOUCHED else self._augmenter.vary(question, rng, PHRASE_RATES)
        if topic.keywords and rng.random() < FROM_KEYWORDS:
            phrase = rng.choice(self._frames).format(x=rng.choice(topic.keywords), y=rng.choice(topic.keywords))
            return self._augmenter.vary(phrase, rng, PHRASE_RATES)
        wording = rng.choice(topic.wordings)
        return wording if rng.random() < UNTOUCHED else self._vary(wording, topic)

    def _vary(self, wording: str, topic: Topic) -> str:
        if topic.name == UNKNOWN:
            return self._augmenter.vary(wording, self._rng, SOCIAL_RATES)
        if topic.is_social:
            return self._augmenter.vary(wording, self._rng, SOCIAL_RATES, topic.wordings)
        return self._augmenter.vary(wording, self._rng, TOPIC_RATES, topic.wordings, topic.answer)
