"""The tokenizer of `guide` and its chat template.

Byte-level BPE with five special tokens. The answer starts directly after `<|assistant|>`, without a space or a new
line, so that the first token already carries the decision for a topic.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import NamedTuple

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from training.guide.corpus import Corpus
from training.guide.questions import Questions

SPECIAL_TOKENS = ("<|pad|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>")

# A model this small is exact over one earlier turn and not over six, so the template shows it no more: the system
# message, and of the last three messages those from the first user message on.
CHAT_TEMPLATE = (
    "{%- for message in messages if message.role in ['system', 'developer'] -%}"
    "<|system|>{{ message.content }}<|end|>"
    "{%- endfor -%}"
    "{%- set turns = messages | selectattr('role', 'in', ['user', 'assistant']) | list -%}"
    "{%- set state = namespace(started=false) -%}"
    "{%- for message in turns[-3:] -%}"
    "{%- if message.role == 'user' %}{% set state.started = true %}{% endif -%}"
    "{%- if state.started %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt %}<|assistant|>{% endif -%}"
)

_WORDS = r"'(?:s|t|re|ve|m|ll|d)| ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


class Markers(NamedTuple):
    """Ids of the special tokens."""

    pad: int
    system: int
    user: int
    assistant: int
    end: int


class GuideTokenizer:
    """Text to ids and back, and the ids that stand around messages."""

    def __init__(self, file: Path) -> None:
        self._tokenizer = Tokenizer.from_file(str(file))
        self.markers = Markers(*map(self._id_of, SPECIAL_TOKENS))
        self.vocab_size: int = self._tokenizer.get_vocab_size()

    def encode(self, text: str) -> list[int]:
        """The ids of `text`, without any special token."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: list[int]) -> str:
        """The text of `ids`."""
        text: str = self._tokenizer.decode(ids, skip_special_tokens=False)
        return text

    def _id_of(self, token: str) -> int:
        number = self._tokenizer.token_to_id(token)
        assert number is not None, token
        return number

    def message(self, role: int, text: str) -> list[int]:
        """One whole message, as the chat template writes it; `role` is one of `markers`."""
        return [role, *self.encode(text), self.markers.end]


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
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(corpus, seed), trainer)
    tokenizer.save(str(file))


def _texts(corpus: Corpus, seed: int) -> list[str]:
    rng = random.Random(f"tokenizer {seed}")
    questions = Questions(corpus, rng)
    texts: list[str] = []
    for topic in corpus.topics:
        texts += [topic.answer] * 2
        for text in (*topic.wordings, *topic.keywords):
            texts += [text, text.lower(), " " + text, " " + text.lower()]
    texts += [questions.ask(questions.next_topic()) for _ in range(4000)]
    texts += [" " + word for word in questions.foreign_vocabulary]
    return texts
