"""A trial: one grammar compiled, with its first masks, in a process of its own that limits end.

How long a grammar takes to compile, and how much memory, cannot be known from its text: 200 bytes can take minutes. So
no grammar of a client is compiled before a trial has shown that it is cheap.
"""

from __future__ import annotations

import signal
from dataclasses import replace
from typing import TypeVar

import msgspec

from app.contract.errors import InvalidValue
from app.contract.grammar import Grammar
from app.text.grammar.compile import compile_grammar
from app.text.grammar.grammar_sizes import MAX_BYTES
from app.text.grammar.grammar_sources import lark_source
from app.text.grammar.vocabulary import GrammarVocabulary

Kind = TypeVar("Kind")

CPU_S = 1.0
MEMORY_BYTES = 512 * 2**20
WALL_S = 20.0
"""The time on the clock after which a trial is ended, on a machine that gives it hardly any processor time."""
FAULT, NO_MEMORY = 1, 3
"""Exit codes of a trial without a verdict."""
_OUT_OF_MEMORY = (-signal.SIGABRT, -signal.SIGSEGV, -signal.SIGBUS)  # the library does not expect it


class Verdict(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a trial found: the grammar is accepted, unless there is a `rejection`, with `param` as in InvalidValue.

    `lark` is the source of a grammar with GBNF, all in Lark.
    """

    rejection: str | None = None
    param: str | None = None
    lark: str | None = None


class Ended(msgspec.Struct, frozen=True):
    """How the process of a trial has ended, and its processor time.

    `status` is its exit code, or that of the signal that has ended it, negative. `num_bytes` is the memory that the
    grammar has taken at most. With `is_late` WALL_S was over.
    """

    status: int
    cpu_s: float
    num_bytes: int = 0
    is_late: bool = False

    @property
    def limit(self) -> str | None:
        """What the grammar has taken too much of; None if no limit has ended the trial."""
        if self.is_late or self.status == -signal.SIGPROF:
            return f"It takes more than {CPU_S:g} s of processor time to compile"
        if self.status in (NO_MEMORY, *_OUT_OF_MEMORY) or self.num_bytes > MAX_BYTES:
            return f"It takes more than {MAX_BYTES // 2**20} MiB of memory"
        return None


def encode_grammar(grammar: Grammar) -> bytes:
    """Return a grammar as one line."""
    return msgspec.json.encode(grammar) + b"\n"


def run_trial(line: bytes, vocabulary: GrammarVocabulary) -> bytes:
    """Compile the grammar in `line`, and return the verdict as one line. The process of the trial only."""
    grammar = msgspec.json.decode(line, type=Grammar)
    try:
        lark = None
        if grammar.gbnf is not None:
            lark = lark_source(grammar)
            grammar = replace(grammar, source=lark, gbnf=None)
        compile_grammar(grammar, vocabulary)
        verdict = Verdict(lark=lark)
    except InvalidValue as error:
        verdict = Verdict(error.message, error.param)
    return msgspec.json.encode(verdict) + b"\n"


def read_trial(data: bytes) -> tuple[Verdict | None, Ended | None]:
    """Return the verdict and the end in what came from a trial; None for what is missing."""
    lines = data.splitlines()
    ended = _read(lines[-1], Ended) if lines else None
    verdict = _read(lines[0], Verdict) if len(lines) > 1 or (lines and ended is None) else None
    return verdict, ended


def _read(line: bytes, kind: type[Kind]) -> Kind | None:
    try:
        return msgspec.json.decode(line, type=kind)
    except msgspec.MsgspecError:
        return None
