"""The process that forks the others: it reads the vocabulary of a model once, and forks a process for each trial, and
the one that finds masks (see mask_worker).

It has one thread, no torch and no grammar, so that a fork is cheap and safe: a forked process has a copy of all memory,
but of the threads only the one that has forked. The server starts it before the first grammar, and says through a
socket what to fork; with each order comes one end of another socket, for the new process. The end of a trial follows
as the last line on its socket, and how the process that finds masks has ended stands in its memory before its socket
ends. When the server ends, the first socket does too, and then this process and all others.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import select
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from math import inf
from typing import BinaryIO, NamedTuple

import msgspec

from app.contract.errors import UnsupportedParameter
from app.contract.grammar import Grammar, GrammarKind
from app.runtime.clock import monotonic
from app.runtime.process_limits import limit_process
from app.text.grammar.children.mask_memory import note_signal
from app.text.grammar.children.mask_worker import MaskWorker
from app.text.grammar.children.trial import FAULT, NO_MEMORY, Ended, GrammarLimits, encode_grammar, run_trial
from app.text.grammar.vocabulary import GrammarVocabulary, all_tokens
from app.text.tokens.tokenizer import Tokenizer, TokenizerSource

_ORDINARY = Grammar(GrammarKind.JSON_SCHEMA, '{"type":"object"}')
LENGTH_BYTES = 8  # of the length of a part of the greeting
RSS_UNIT = 1 if sys.platform == "darwin" else 1024  # bytes
NOISE_BYTES = 8 * 2**20
"""What the trial of a small grammar takes, and more."""
LOW_PRIORITY = 5
"""By how much a whole trial is nicer than others: those who wait for cores are ordinary clients."""
REFUSE_S = 1.0  # grammars follow their orders at once
MAX_DESCRIPTORS = 2
TRIAL, SHORT_TRIAL, MASKS = b"t", b"s", b"m"
"""Orders. With each comes a socket, with the last one the memory that is shared, too."""
READY = b"\n"
"""What the process says when it can fork; else it says in a line why grammars are not supported."""


class _Child(NamedTuple):
    """A process that was forked: its end of the socket, kept open until its end is told, and when it must have ended.

    The end of the process that finds masks is told in its `memory`; no other one has any.
    """

    connection: socket.socket
    memory: int | None
    deadline: float
    is_short: bool

    def close(self) -> None:
        """Close what is kept open."""
        self.connection.close()
        if self.memory is not None:
            os.close(self.memory)


class ForkServer:
    """Forks a process for each order, and tells the ends of those. One thread, the only one of its process."""

    def __init__(self, control: socket.socket, vocabulary: GrammarVocabulary, limits: GrammarLimits) -> None:
        self._control = control
        self._vocabulary = vocabulary
        self._limits = limits
        self._children: dict[int, _Child] = {}
        self._idle_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * RSS_UNIT

    def run(self) -> None:
        """Carry out orders until the server has ended, or closed its end of the socket; then end all processes."""
        read_end, write_end = os.pipe()
        os.set_blocking(write_end, False)
        signal.set_wakeup_fd(write_end)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        poll = select.poll()  # the number of the socket is the server's, which may be too high for `select`
        for descriptor in (self._control.fileno(), read_end):
            poll.register(descriptor, select.POLLIN)
        while True:
            seconds_left = self._seconds_left()
            ready = dict(poll.poll(None if seconds_left is None else 1000 * seconds_left))
            if read_end in ready:
                os.read(read_end, 4096)
            self._reap()
            if self._control.fileno() in ready and not self._take_order():
                break
        for pid in self._children:
            os.kill(pid, signal.SIGKILL)

    def _take_order(self) -> bool:
        """Fork a process for the next order; return False if there is none and will be none."""
        order, descriptors, _, _ = socket.recv_fds(self._control, 1, MAX_DESCRIPTORS)
        if not order:
            return False
        pid, reason = None, ""
        try:
            pid = os.fork()
        except OSError as error:  # there are too many processes, or too little memory
            reason = error.strerror or str(error)
        if pid == 0:
            self._become(order, descriptors)
        memory = descriptors[1] if order == MASKS else None
        deadline = monotonic() + self._limits.wall_s if memory is None else inf
        child = _Child(socket.socket(fileno=descriptors[0]), memory, deadline, order == SHORT_TRIAL)
        if pid is not None:
            self._children[pid] = child
        elif memory is None:
            self._refuse(child.connection, reason)
        else:
            child.close()
        return True

    def _refuse(self, connection: socket.socket, reason: str) -> None:
        """Say why no process was forked, when the grammar has come: a reset by what is unread could outrun it."""
        connection.settimeout(REFUSE_S)
        with suppress(OSError), connection.makefile("rb") as lines:
            lines.readline()
        self._tell(connection, Ended(FAULT, 0.0, not_forked=reason))

    def _become(self, order: bytes, descriptors: Sequence[int]) -> None:
        """Do in the process that was forked what it is for, and end it."""
        status = FAULT
        try:
            self._control.close()
            for other in self._children.values():
                other.close()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            connection = socket.socket(fileno=descriptors[0])
            if order == MASKS:
                MaskWorker(connection, descriptors[1], self._vocabulary, self._limits.mask_s).run()
            else:
                self._try(connection, is_short=order == SHORT_TRIAL)
            status = 0
        except MemoryError:
            status = NO_MEMORY
        finally:
            os._exit(status)  # without what the interpreter does at its end, which belongs to the process that forked

    def _try(self, connection: socket.socket, *, is_short: bool) -> None:
        limits = self._limits
        cpu_s = min(limits.short_s, limits.cpu_s) if is_short else limits.cpu_s
        if not is_short:
            os.nice(LOW_PRIORITY)
        limit_process(cpu_s=cpu_s, more_bytes=limits.memory_bytes)
        with connection.makefile("rb") as lines:
            connection.sendall(run_trial(lines.readline(), self._vocabulary))

    def _seconds_left(self) -> float | None:
        """Return the time until the next process must have ended; None without any."""
        first = min((child.deadline for child in self._children.values()), default=inf)
        return None if first == inf else max(0.0, first - monotonic())

    def _reap(self) -> None:
        """Tell the ends of processes; end those that have taken too long."""
        now, late = monotonic(), set()
        for pid, child in self._children.items():
            if child.deadline <= now:
                os.kill(pid, signal.SIGKILL)
                late.add(pid)
        for pid in list(self._children):
            found, status, usage = os.wait4(pid, 0 if pid in late else os.WNOHANG)
            if found == pid:
                code, cpu_s = os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime
                num_bytes = max(0, usage.ru_maxrss * RSS_UNIT - self._idle_bytes - NOISE_BYTES)
                child = self._children.pop(pid)
                if child.memory is not None:
                    note_signal(child.memory, max(0, -code))
                    child.close()  # not before: whoever reads the end of the socket reads the note then
                    continue
                needs_longer = self._limits.has_time_left(code, is_short=child.is_short)
                is_late = pid in late
                limit = None if needs_longer else self._limits.reached(code, is_late=is_late, num_bytes=num_bytes)
                self._tell(child.connection, Ended(code, cpu_s, num_bytes, limit, needs_longer))

    def _tell(self, connection: socket.socket, ended: Ended) -> None:
        with suppress(OSError), connection:  # who has asked may be gone
            connection.setblocking(False)
            connection.sendall(b"\n" + msgspec.json.encode(ended) + b"\n")


def greeting(
    tokenizer: Tokenizer, vocab_size: int, eos_token_ids: Sequence[int], limits: GrammarLimits
) -> Iterator[bytes]:
    """Yield the parts that `main` reads, each behind its length: facts, the tokenizer's file, the bytes of all tokens.

    Blocks for 3 µs a token before the last one: meanwhile the process reads the file, which takes longer.
    """
    file, named_tokens, special_texts = tokenizer.read_source()
    # As ASCII, since a text may have lone surrogates.
    facts = json.dumps([named_tokens, special_texts, vocab_size, list(eos_token_ids), limits]).encode()
    yield _length(facts) + facts + _length(file)
    yield file
    tokens = msgspec.msgpack.encode(all_tokens(tokenizer, vocab_size))
    yield _length(tokens)
    yield tokens


def _length(part: bytes) -> bytes:
    return len(part).to_bytes(LENGTH_BYTES, "little")


def _read_part(greeted: BinaryIO) -> bytes:
    """Return the next part of the greeting; ends the process if the server has ended."""
    length = int.from_bytes(greeted.read(LENGTH_BYTES), "little")
    part = greeted.read(length)
    if not part or len(part) < length:
        sys.exit()
    return part


def main() -> None:
    """Read the greeting from the socket whose descriptor is the argument, then fork. The process's only function."""
    control = socket.socket(fileno=int(sys.argv[1]))
    with control.makefile("rb") as greeted:
        named_tokens, special_texts, vocab_size, eos_token_ids, limits = json.loads(_read_part(greeted))
        tokenizer = Tokenizer.from_source(TokenizerSource(_read_part(greeted), named_tokens, special_texts))
        tokens = msgspec.msgpack.decode(_read_part(greeted), type=list[bytes])
    try:
        vocabulary = GrammarVocabulary(tokenizer, vocab_size, eos_token_ids, tokens)
    except UnsupportedParameter as error:
        control.sendall(error.message.encode() + b"\n")
        return
    run_trial(encode_grammar(_ORDINARY), vocabulary)  # what is imported and read once now is so in all forked processes
    _silence()
    gc.collect()
    gc.freeze()  # so that no collection in a forked process copies what all share
    control.sendall(READY)
    ForkServer(control, vocabulary, GrammarLimits(*limits)).run()


def _silence() -> None:
    """Write nothing to the server's standard error: libraries that run out of memory say so there."""
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
        os.dup2(nowhere.fileno(), sys.stderr.fileno())
