"""The tokenizer of `guide` and its chat template.

Byte-level BPE with four special tokens, and a token for the opening of each answer: its first three words, which no
other answer begins with. So the first token of an answer is the decision for a topic, and all that follows is known by
heart.
"""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import NamedTuple

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from training.guide.corpus import Corpus
from training.guide.questions import Questions

SPECIAL_TOKENS = ("<|pad|>", "<|user|>", "<|assistant|>", "<|end|>")

UNSURE = "This may be what you mean:\n\n"
"""How an answer begins that gives two topics, because the question fits none well."""
OR_ELSE = "\n\nOr it is this:\n\n"
"""What stands between these two."""
OPENING_WORDS = 3
ANSWER_WEIGHT = 20  # what takes time to learn are the answers, so their words get tokens first

# Questions are read in lower case, each word behind a space: so a word is the same tokens wherever it stands.
# The reader weighs every word in front of the answer, so the template shows nothing but the last question, and what has
# been answered to it where an answer is continued.
CHAT_TEMPLATE = (
    "{%- set last = namespace(question='', answer='') -%}"
    "{%- for message in messages -%}"
    "{%- if message.role == 'user' -%}"
    "{%- set last.question = message.content -%}{%- set last.answer = '' -%}"
    "{%- elif message.role == 'assistant' -%}"
    "{%- set last.answer = message.content or '' -%}"
    "{%- endif -%}"
    "{%- endfor -%}"
    "<|user|>{{ ' ' ~ (last.question | lower) }}<|end|>"
    "{%- if add_generation_prompt -%}<|assistant|>"
    "{%- elif last.answer -%}<|assistant|>{{ last.answer }}<|end|>{%- endif -%}"
)

_WORDS = r"'(?:s|t|re|ve|m|ll|d)| ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


class Markers(NamedTuple):
    """Ids of the special tokens."""

    pad: int
    user: int
    assistant: int
    end: int


class GuideTokenizer:
    """Text to ids and back, and the ids that stand around messages."""

    def __init__(self, file: Path) -> None:
        self._tokenizer = Tokenizer.from_file(str(file))
        self.markers = Markers(*map(self._id_of, SPECIAL_TOKENS))
        self.vocab_size: int = self._tokenizer.get_vocab_size()
        self.unsure, self.or_else = self._id_of(UNSURE), self._id_of(OR_ELSE)

    def encode(self, text: str) -> list[int]:
        """The ids of `text`, without any special token."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: list[int]) -> str:
        """The text of `ids`."""
        text: str = self._tokenizer.decode(ids, skip_special_tokens=False)
        return text

    def opening(self, answer: str) -> int:
        """Return the token that `answer` begins with."""
        return self._id_of(opening(answer))

    def _id_of(self, token: str) -> int:
        number = self._tokenizer.token_to_id(token)
        assert number is not None, token
        return number

    def question(self, text: str) -> list[int]:
        """Return what stands in front of an answer, as the chat template writes it."""
        return [self.markers.user, *self.encode(as_read(text)), self.markers.end, self.markers.assistant]


def as_read(question: str) -> str:
    """Write a question as the chat template does."""
    return " " + question.lower()


def opening(answer: str) -> str:
    """Return the first words of an answer, which are one token."""
    found = re.match(rf"(?:\S+\s+){{{OPENING_WORDS - 1}}}\S+", answer)
    assert found is not None, answer
    return found[0]


def train_tokenizer(corpus: Corpus, vocab_size: int, seed: int, file: Path) -> None:
    """Train the tokenizer on what the model will see, never on the held-out questions, and save it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    phrases = [UNSURE, OR_ELSE, *(opening(topic.answer) for topic in corpus.topics)]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(phrases),
        min_frequency=2,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(corpus, seed), trainer)
    tokenizer.add_tokens([AddedToken(phrase, normalized=False, special=False) for phrase in phrases])
    assert tokenizer.get_vocab_size() == vocab_size
    tokenizer.save(str(file))


def _texts(corpus: Corpus, seed: int) -> list[str]:
    rng = random.Random(f"tokenizer {seed}")
    questions = Questions(corpus, rng)
    texts: list[str] = []
    for topic in corpus.topics:
        texts += [topic.answer] * ANSWER_WEIGHT
        texts += [as_read(text) for text in (*topic.wordings, *topic.keywords)] * 2
    texts += [as_read(questions.ask(questions.next_topic())) for _ in range(4000)]
    texts += [as_read(word) for word in questions.foreign_vocabulary]
    return texts
