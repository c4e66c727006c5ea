"""Questions about everything else: frames and real questions filled with foreign words.

A rejection cannot be learnt from a list of foreign questions alone, since any list is short; it is learnt as "none of
the words that decide a topic is here". So most foreign questions are made up: from a frame, or from a written question
whose content words were replaced.
"""

from __future__ import annotations

import random

from training.guide.corpus import HeldOut, normalized, read_words

_CONSONANTS = (*"bcdfghjklmnprstvwz", "br", "cl", "dr", "fl", "gr", "pl", "st", "tr", "sh", "ch", "th")
_VOWELS = (*"aeiou", "ai", "ea", "ou", "oo")


class ForeignQuestions:
    """Makes foreign questions; words of the held-out foreign questions are never used."""

    def __init__(self, held_out: tuple[HeldOut, ...]) -> None:
        self._frames = read_words("foreign_frames", separator="|")
        # Words that belong to the form of a question; they stay when its content is replaced.
        self._form_words = frozenset(read_words("form_words") + read_words("stop_words"))
        taken = {w for item in held_out if item.kind != "known" for w in normalized(item.question).split()}
        self._words = [word for word in read_words("foreign_words") if word.lower() not in taken]
        self._phrases = [
            phrase
            for phrase in read_words("foreign_phrases", separator="|")
            if not taken & set(phrase.lower().split()) - self._form_words
        ]

    @property
    def vocabulary(self) -> list[str]:
        """All foreign words and phrases, for the tokenizer."""
        return self._words + self._phrases

    def make(self, rng: random.Random, written: str) -> str:
        """Make one foreign question: from a frame, or from a `written` question by replacing its content words."""
        if rng.random() < 0.5:
            words = written.split()
            content = [i for i, word in enumerate(words) if word.lower().strip("?.,!") not in self._form_words]
            for i in content:
                words[i] = self._word(rng).split()[-1] + "?" * words[i].endswith("?")
            if content:
                return " ".join(words)
        return rng.choice(self._frames).format(x=self._word(rng), y=self._word(rng))

    def _word(self, rng: random.Random) -> str:
        kind = rng.random()
        if kind < 0.25:
            return rng.choice(self._phrases)
        if kind < 0.8:
            return rng.choice(["", "", "a ", "the ", "my "]) + rng.choice(self._words)
        word = "".join(rng.choice(_CONSONANTS) + rng.choice(_VOWELS) for _ in range(rng.randint(1, 3)))
        word += rng.choice(["", "n", "r", "s", "t", "x", "ng", "sk"])
        return word.capitalize() if rng.random() < 0.3 else word
