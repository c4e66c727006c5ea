"""A process that finds masks, spoken to through its sockets."""

from __future__ import annotations

import os
import select
from typing import Any

import numpy as np
import orjson

from app.contract.grammar import Constraint, Grammar, GrammarKind
from app.text.grammar.children.fork_client import ForkClient
from app.text.grammar.children.mask_memory import NOTES_BYTES, MaskMemory, new_memory_file
from app.text.grammar.children.mask_messages import (
    Drafted,
    Messages,
    Ready,
    Reply,
    Setup,
    Start,
    Take,
    Took,
    Turn,
    encode,
)
from app.text.grammar.vocabulary import mask_words
from tests.text import toys
from tests.text.grammar.processes import HANG_S

TEXT, _ = toys.toy("byte_level")
EOS, REGIONS = 1, 24
WORDS = mask_words(TEXT.vocab_size)
A, B, C, X, Z, QUOTE = (TEXT.encode(letter, add_special_tokens=False)[0] for letter in 'abcxz"')
OPEN, CLOSE = TEXT.vocab_size - 1, TEXT.vocab_size - 2
ABC = Constraint(Grammar(GrammarKind.CHOICE, '["abc", "abx"]'))


def costly(num_patterns: int) -> Constraint:
    """A schema whose mask behind six letters takes twice as long for each further pattern."""
    patterns = [{"pattern": f"^(z*q|z{{6}}(.*)k{number}(.*))$"} for number in range(num_patterns)]
    return Constraint(Grammar(GrammarKind.JSON_SCHEMA, orjson.dumps({"type": "string", "allOf": patterns}).decode()))


class Worker:
    """A process that finds masks, and what it has said so far."""

    def __init__(self, children: ForkClient, num_threads: int = 2) -> None:
        self._descriptor = new_memory_file(NOTES_BYTES + 4 * WORDS * REGIONS)
        self.memory = MaskMemory(self._descriptor, WORDS, REGIONS)
        self.steps = children.fork_masks(self._descriptor)
        self.steps.sendall(encode(Setup(num_threads, WORDS, REGIONS, (EOS,))))
        self.took: list[Took] = []
        self.ready: list[Ready] = []
        self.drafted: list[Drafted] = []
        self.has_ended = False
        self._replies = Messages(Reply)

    def say(self, **parts: Any) -> None:
        """Send a turn."""
        self.steps.sendall(encode(Turn(**parts)))

    def start(self, number: int, constraint: Constraint = ABC, tokens: tuple[int, ...] = (), **fields: Any) -> Start:
        """The beginning of a sequence, whose mask goes to the region of its number."""
        return Start(number, number, fields.get("account", ""), constraint, tokens, 1)

    def wait(self, took: int = 0, ready: int = 0, drafted: int = 0) -> None:
        """Wait until so many things were said, or the process has ended."""
        while len(self.took) < took or len(self.ready) < ready or len(self.drafted) < drafted:
            assert select.select([self.steps], [], [], HANG_S)[0], "the process says nothing"
            try:
                data = self.steps.recv(65536)
            except ConnectionError:
                data = b""
            if not data:
                self.has_ended = True
                return
            for reply in self._replies.feed(data):
                self.took += reply.took
                self.ready += reply.ready
                self.drafted += reply.drafted

    def take_one_by_one(self, number: int, tokens: tuple[int, ...]) -> str | None:
        """Let a sequence take tokens, each when the mask behind the last one is there; return its failure."""
        for token_id in tokens:
            self.say(takes=(Take(number, number, (token_id,)),))
            self.wait(took=len(self.took) + 1, ready=len(self.ready) + 1)
            if self.has_ended or self.ready[-1].failure is not None:
                break
        return None if self.has_ended else self.ready[-1].failure

    def wait_for_end(self) -> None:
        """Wait until the process has ended."""
        self.wait(took=10**9)

    def mask(self, region: int) -> set[int]:
        """The tokens that a mask allows."""
        words = np.frombuffer(self.memory.words, np.uint32).reshape(REGIONS, WORDS)[region]
        return set(np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")).tolist())

    def close(self) -> None:
        """End it."""
        self.steps.close()
        os.close(self._descriptor)
