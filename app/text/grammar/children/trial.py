"""A trial: one grammar compiled, with its first masks, in a process of its own that limits end.

How long a grammar takes to compile, and how much memory, cannot be known from its text: 200 bytes can take minutes. So
no grammar of a client is compiled before a trial has shown that it is cheap.
"""

from __future__ import annotations

import signal
from dataclasses import replace
from typing import NamedTuple, TypeVar

import msgspec

from app.contract.errors import InvalidValue
from app.contract.grammar import Grammar
from app.text.grammar.compile import compile_grammar
from app.text.grammar.grammar_sizes import MAX_BYTES
from app.text.grammar.grammar_sources import lark_source
from app.text.grammar.vocabulary import GrammarVocabulary

Kind = TypeVar("Kind")

SHORT_S = 0.1
"""Grammars that take longer to compile are no ordinary ones: these wait for none of them."""
FAULT, NO_MEMORY = 1, 3
"""Exit codes of a trial without a verdict."""
_OUT_OF_MEMORY = (-signal.SIGABRT, -signal.SIGSEGV, -signal.SIGBUS)  # the library does not expect it


class GrammarLimits(NamedTuple):
    """The limits of a trial: processor time, memory beyond what it begins with (on Linux), and time on the clock.

    The clock ends it on a machine that gives it hardly any processor time. A short trial may take `short_s` of it, and
    says nothing about a grammar that takes longer. Behind the trial, a thread may take `mask_s` of processor time for
    one sequence in a step.
    """

    cpu_s: float = 1.0
    memory_bytes: int = 512 * 2**20
    wall_s: float = 20.0
    short_s: float = SHORT_S
    mask_s: float = 0.1

    def has_time_left(self, status: int, *, is_short: bool) -> bool:
        """Return whether a trial has ended only because it was a short one."""
        return is_short and status == -signal.SIGPROF and self.short_s < self.cpu_s

    def reached(self, status: int, *, is_late: bool, num_bytes: int = 0) -> str | None:
        """Return a sentence about the limit that a grammar has reached, by its trial's end; None if it has none."""
        if status == -signal.SIGPROF:
            return f"It takes more than {self.cpu_s:g} s of processor time to compile."
        if status in (NO_MEMORY, *_OUT_OF_MEMORY):
            return f"It takes more than {self.memory_bytes // 2**20} MiB of memory to compile."
        if num_bytes > MAX_BYTES:
            return f"It takes more than {MAX_BYTES // 2**20} MiB of memory when it is compiled."
        return f"It was not compiled within {self.wall_s:g} s." if is_late else None


class Verdict(msgspec.Struct, frozen=True, omit_defaults=True):
    """The verdict of a trial: the grammar is accepted, unless there is a `rejection`, with `param` as in InvalidValue.

    `lark` is the source of a grammar with GBNF, all in Lark.
    """

    rejection: str | None = None
    param: str | None = None
    lark: str | None = None


class Ended(msgspec.Struct, frozen=True):
    """How the process of a trial has ended, and its processor time.

    `status` is its exit code, or that of the signal that has ended it, negative. `num_bytes` is the most memory that it
    has taken, beyond what the trial of any grammar takes. `limit` says which limit was reached, if one was. With
    `needs_longer` it was a short trial, which was not enough. `not_forked` says why there was no process at all.
    """

    status: int
    cpu_s: float
    num_bytes: int = 0
    limit: str | None = None
    needs_longer: bool = False
    not_forked: str | None = None


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


def read_trial(data: bytes) -> tuple[Verdict | None, Ended]:
    """Return the verdict, None without one, and the end in what came from a trial; a missing end is a fault."""
    first, _, last = data.partition(b"\n")
    return _read(first, Verdict), _read(last, Ended) or Ended(FAULT, 0.0)


def _read(line: bytes, kind: type[Kind]) -> Kind | None:
    try:
        return msgspec.json.decode(line, type=kind)
    except msgspec.MsgspecError:
        return None
