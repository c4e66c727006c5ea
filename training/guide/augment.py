"""Questions in other words: frames, synonyms, dropped and shuffled words, typing errors, politeness, case.

A model of this size knows no English but what it is shown, so every wording is shown in thousands of forms. The
rates were found by trying; of all changes, pieces of the answer used as a question help most.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from training.guide.corpus import read_words

# Question forms that mean the same: a pattern with the group `x`, and what `x` may be put into.
_FORMS = (
    (
        re.compile(
            r"^(?:how (?:do|can|would) (?:i|we)|how to|what is the way to|i want to|i would like to) (?P<x>.+?)[?.!]*$",
            re.IGNORECASE,
        ),
        (
            *("How do I {x}?", "How can I {x}?", "how to {x}", "What is the best way to {x}?", "I want to {x}"),
            *("Tell me how to {x}.", "What do I have to do to {x}?", "Is there a way to {x}?", "Can I {x}?", "{x}"),
            *("steps to {x}", "How would I {x}?", "I need to {x}", "Is it possible to {x}?", "help me to {x}"),
        ),
    ),
    (
        re.compile(
            r"^(?:what is|what's|what are|explain|tell me about|define|what does) (?P<x>(?:(?! do$| do\?| mean).)+?)"
            r"(?: mean)?[?.!]*$",
            re.IGNORECASE,
        ),
        (
            *("What is {x}?", "what's {x}", "Explain {x}.", "Tell me about {x}.", "{x}", "{x}?", "Define {x}"),
            *("Can you explain {x}?", "What does {x} mean?", "I do not understand {x}.", "how does {x} work"),
            *("What do you know about {x}?", "information on {x}", "What about {x}?"),
        ),
    ),
    (
        re.compile(r"^(?P<verb>is|are|does|do|can|will) (?P<x>.+?)\?$", re.IGNORECASE),
        ("{verb} {x}?", "I wonder if {x}", "tell me whether {x}", "Is it true that {x}?"),
    ),
)
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True)
class Rates:
    """How often each change is made to a question."""

    fragment: float = 0.12
    mix: float = 0.15
    frame: float = 0.4
    synonyms: float = 0.4
    drop: float = 0.35
    drop_stop_words: float = 0.12
    shuffle: float = 0.15
    typo: float = 0.3
    prefix: float = 0.25
    suffix: float = 0.15
    punctuation: float = 0.4
    lower: float = 0.3
    upper: float = 0.04
    capital: float = 0.3


TOPIC_RATES = Rates()
PHRASE_RATES = Rates(fragment=0, mix=0)
SOCIAL_RATES = Rates(fragment=0, mix=0.1, frame=0, synonyms=0.2, prefix=0.15, suffix=0.08)


class Augmenter:
    """Says a question in other words; all randomness comes from the generator it is given."""

    def __init__(self) -> None:
        groups = [[word.strip() for word in line.split("|")] for line in read_words("synonyms", separator="\n")]
        self._others = {word.lower(): [o for o in group if o != word] for group in groups for word in group}
        longest_first = sorted(map(re.escape, self._others), key=len, reverse=True)
        self._pattern = re.compile(rf"\b({'|'.join(longest_first)})\b", re.IGNORECASE)
        self._prefixes = read_words("prefixes", separator="|")
        self._suffixes = read_words("suffixes", separator="|")
        self._stop_words = frozenset(read_words("stop_words"))

    def vary(
        self, question: str, rng: random.Random, rates: Rates, siblings: Sequence[str] = (), answer: str = ""
    ) -> str:
        """Return `question` in another form; `siblings` and `answer` are of the same topic and may be mixed in."""
        if answer and rng.random() < rates.fragment:
            question = _fragment(answer, rng)
        elif siblings and rng.random() < rates.mix:
            question = _mix(question, rng.choice(siblings), rng)
        if rng.random() < rates.frame:
            question = _reframe(question, rng)
        if rng.random() < rates.synonyms:
            question = self._pattern.sub(lambda match: self._swap(match[0], rng), question)
        question = " ".join(self._change_words(question.split(), rng, rates))
        return self._dress(question, rng, rates).strip() or "?"

    def _is_stop_word(self, word: str) -> bool:
        return word.lower().strip("?.,!") in self._stop_words

    def _swap(self, word: str, rng: random.Random) -> str:
        return rng.choice(self._others[word.lower()]) if rng.random() < 0.5 else word

    def _change_words(self, words: list[str], rng: random.Random, rates: Rates) -> list[str]:
        """Drop, shuffle and misspell words; never drops all of them."""
        if len(words) > 2 and rng.random() < rates.drop:
            share = rng.choice([0.1, 0.2, 0.35])
            words = [w for w in words if rng.random() > share * (1.6 if self._is_stop_word(w) else 1.0)] or words
        if len(words) > 2 and rng.random() < rates.drop_stop_words:
            words = [w for w in words if not self._is_stop_word(w)] or words
        if len(words) > 2 and rng.random() < rates.shuffle:
            if rng.random() < 0.5:
                rng.shuffle(words)
            else:
                i = rng.randrange(len(words) - 1)
                words[i], words[i + 1] = words[i + 1], words[i]
        if rng.random() < rates.typo:
            words = [misspell(w, rng) if rng.random() < 0.25 else w for w in words]
        return words

    def _dress(self, question: str, rng: random.Random, rates: Rates) -> str:
        """Change what stands around the words: politeness, punctuation, case."""
        if rng.random() < rates.prefix:
            question = f"{rng.choice(self._prefixes)} {question[:1].lower()}{question[1:]}"
        if rng.random() < rates.suffix:
            question = f"{question.rstrip('?.! ')} {rng.choice(self._suffixes)}{rng.choice(['', '?'])}"
        if rng.random() < rates.punctuation:
            question = question.rstrip("?.!") + rng.choice(["", "?", "."])
        case = rng.random()
        if case < rates.lower:
            return question.lower()
        if case < rates.lower + rates.upper:
            return question.upper() if rng.random() < 0.3 else question.title()
        if case < rates.lower + rates.upper + rates.capital:
            return question[:1].upper() + question[1:]
        return question


def misspell(word: str, rng: random.Random) -> str:
    """Make one typing error: two letters swapped, one lost, one doubled or one replaced."""
    if len(word) < 4:
        return word
    i, kind = rng.randrange(len(word) - 1), rng.random()
    if kind < 0.35:
        return word[:i] + word[i + 1] + word[i] + word[i + 2 :]
    if kind < 0.65:
        return word[:i] + word[i + 1 :]
    if kind < 0.85:
        return word[:i] + word[i] + word[i:]
    return word[:i] + rng.choice(_LETTERS) + word[i + 1 :]


def _fragment(answer: str, rng: random.Random) -> str:
    """Cut 3 to 10 words out of the answer's prose."""
    words = re.sub(r"```.*?```", " ", answer, flags=re.DOTALL).replace("`", "").split()
    length = rng.randint(3, 10)
    start = rng.randrange(max(1, len(words) - length))
    piece = " ".join(words[start : start + length]).strip(".,;:")
    return rng.choice(["what is ", "how about ", "explain ", "tell me about ", "why "]) * (rng.random() < 0.4) + piece


def _mix(first: str, second: str, rng: random.Random) -> str:
    """Put about 70 % of the words of two wordings together."""
    a, b = ([w for w in re.sub(r"[?.!,]", "", q).split() if rng.random() < 0.7] for q in (first, second))
    at = len(a) if rng.random() < 0.5 else rng.randint(0, len(a))
    return " ".join(a[:at] + b + a[at:])


def _reframe(question: str, rng: random.Random) -> str:
    for pattern, forms in _FORMS:
        match = pattern.match(question)
        if match:
            return rng.choice(forms).format(**match.groupdict())
    return question
