"""What a corpus must look like to be learnable: every rule here was worth points of accuracy."""

from __future__ import annotations

import re
from collections import Counter

from training.guide.corpus import UNKNOWN, Corpus, Topic, normalized
from training.guide.tokenizer import opening

MIN_TOPICS = 40
MIN_WORDINGS = 8
KEYWORDS = range(8, 121)
ANSWER_WORDS = range(10, 151)


def problems(corpus: Corpus) -> list[str]:
    """Say in one line each what is wrong with the corpus; an empty list means nothing is."""
    found = [line for topic in corpus.topics for line in _problems_of(topic)]
    known = [topic for topic in corpus.topics if topic.name != UNKNOWN]
    if len(known) < MIN_TOPICS:
        found.append(f"{len(known)} topics; at least {MIN_TOPICS} are needed.")
    for start, count in Counter(" ".join(topic.answer.split()[:2]) for topic in corpus.topics).items():
        if count > 1:
            found.append(f"{count} answers begin with {start!r}; the first words must tell the topic.")
    for opened in corpus.topics:
        phrase = opening(opened.answer)  # one token, which the model chooses a topic with
        found += [
            f"{topic.name}: the answer has {phrase!r} in it, with which the answer of {opened.name} begins."
            for topic in corpus.topics
            if phrase in (topic.answer[1:] if topic is opened else topic.answer)
        ]
    owner: dict[str, str] = {}
    for topic in corpus.topics:
        shared = [text for text in topic.wordings if owner.setdefault(normalized(text), topic.name) != topic.name]
        found += [f"{topic.name}: {text!r} is a wording of {owner[normalized(text)]} too." for text in shared]
    return found


def _problems_of(topic: Topic) -> list[str]:
    found = []
    if len(topic.wordings) < MIN_WORDINGS:
        found.append(f"{len(topic.wordings)} wordings; at least {MIN_WORDINGS} are needed.")
    if not topic.is_social and len(topic.keywords) not in KEYWORDS:
        found.append(f"{len(topic.keywords)} keywords; {KEYWORDS[0]} to {KEYWORDS[-1]} are needed.")
    length = len(topic.answer.split())
    if length not in ANSWER_WORDS:
        found.append(f"the answer has {length} words; {ANSWER_WORDS[0]} to {ANSWER_WORDS[-1]} are fine.")
    if topic.answer.count("```") not in (0, 2):
        found.append("more than one code block in the answer.")
    if "{default:" in topic.answer or "{param:" in topic.answer:
        found.append("a placeholder is left in the answer.")
    if topic.keywords:
        uses = Counter(stem for text in topic.wordings for stem in _stems(text))
        anchors = {stem for phrase in topic.keywords for stem in _stems(phrase)} | {s for s, n in uses.items() if n > 1}
        found += [
            f"{text!r} has no word of the keyword line or of another wording."
            for text in topic.wordings
            if text not in topic.asked and not _stems(text) & anchors
        ]
    return [f"{topic.name}: {line}" for line in found]


def _stems(text: str) -> set[str]:
    """Words cut to five letters, so that `installing` and `installation` are one."""
    return {word[:5] for word in re.findall(r"\w+", text.lower())}
