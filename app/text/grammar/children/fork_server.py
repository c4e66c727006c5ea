"""The process that forks the others: it reads the vocabulary of a model once, and forks a process for each trial.

It has one thread, no torch and no grammar, so that a fork is cheap and safe: a forked process has a copy of all memory,
but of the threads only the one that has forked. The server starts it before the first grammar, and says through a
socket what to fork; with each order comes one end of another socket, for the new process. The end of that process
follows as the last line on it. When the server ends, the first socket does too, and then this process.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

import msgspec

from app.contract.errors import UnsupportedParameter
from app.contract.grammar import Grammar, GrammarKind
from app.runtime.clock import monotonic
from app.runtime.process_limits import limit_process
from app.text.grammar.children.trial import FAULT, NO_MEMORY, Ended, TrialLimits, encode_grammar, run_trial
from app.text.grammar.vocabulary import GrammarVocabulary
from app.text.tokenizer import Tokenizer

_ORDINARY = Grammar(GrammarKind.JSON_SCHEMA, '{"type":"object"}')
HEAD_BYTES = 8  # of the length in front of the greeting
READY = b"\n"
"""What the process says when it can fork; else it says in a line why grammars are not supported."""


class _Child(NamedTuple):
    """A process that was forked: the socket that its end is told on, and when it must have ended."""

    connection: socket.socket
    deadline: float


class ForkServer:
    """Forks a process for each order, and tells the ends of those. One thread, the only one of its process."""

    def __init__(self, control: socket.socket, vocabulary: GrammarVocabulary, limits: TrialLimits) -> None:
        self._control = control
        self._vocabulary = vocabulary
        self._limits = limits
        self._children: dict[int, _Child] = {}

    def run(self) -> None:
        """Carry out orders until the server has ended, or closed its end of the socket; then end all processes."""
        read_end, write_end = os.pipe()
        os.set_blocking(write_end, False)
        signal.set_wakeup_fd(write_end)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        while True:
            ready, _, _ = select.select([self._control.fileno(), read_end], [], [], self._seconds_left())
            if read_end in ready:
                os.read(read_end, 4096)
            self._reap()
            if self._control.fileno() in ready and not self._take_order():
                break
        for pid in self._children:
            os.kill(pid, signal.SIGKILL)

    def _take_order(self) -> bool:
        """Fork a process for the next order; return False if there is none and will be none."""
        data, descriptors, _, _ = socket.recv_fds(self._control, 1, 1)
        if not data:
            return False
        connection = socket.socket(fileno=descriptors[0])
        try:
            pid = os.fork()
        except OSError:  # there are too many processes; whoever has asked learns it by the end of the socket
            connection.close()
            return True
        if pid == 0:
            self._become(connection)
        self._children[pid] = _Child(connection, monotonic() + self._limits.wall_s)
        return True

    def _become(self, connection: socket.socket) -> None:
        """Run a trial in the process that was forked, and end it."""
        status = FAULT
        try:
            self._control.close()
            for other in self._children.values():
                other.connection.close()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            with connection.makefile("rb") as lines:
                limit_process(cpu_s=self._limits.cpu_s, more_bytes=self._limits.memory_bytes)
                connection.sendall(run_trial(lines.readline(), self._vocabulary))
            status = 0
        except MemoryError:
            status = NO_MEMORY
        finally:
            os._exit(status)  # without what the interpreter does at its end, which belongs to the process that forked

    def _seconds_left(self) -> float | None:
        """Return the time until the next process must have ended; None without any."""
        deadlines = [child.deadline for child in self._children.values()]
        return max(0.0, min(deadlines) - monotonic()) if deadlines else None

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
                ended = Ended(code, cpu_s, self._limits.reached(code, is_late=pid in late))
                self._tell(self._children.pop(pid).connection, ended)

    def _tell(self, connection: socket.socket, ended: Ended) -> None:
        with suppress(OSError), connection:  # who has asked may be gone
            connection.setblocking(False)
            connection.sendall(b"\n" + msgspec.json.encode(ended) + b"\n")


def greeting(tokenizer: Tokenizer, vocab_size: int, eos_token_ids: Sequence[int], limits: TrialLimits) -> bytes:
    """Return what `main` reads: a model's vocabulary and the limits of trials, behind the number of their bytes."""
    values = [tokenizer.to_json(), vocab_size, list(eos_token_ids), limits]
    source = json.dumps(values, ensure_ascii=False).encode("utf-8", "surrogatepass")
    return len(source).to_bytes(HEAD_BYTES, "little") + source


def main() -> None:
    """Read the greeting from the socket whose descriptor is the argument, then fork. The process's only function."""
    control = socket.socket(fileno=int(sys.argv[1]))
    with control.makefile("rb") as data:
        num_bytes = int.from_bytes(data.read(HEAD_BYTES), "little")
        source = data.read(num_bytes)
    if len(source) < max(num_bytes, 1):
        return  # the server has ended
    tokenizer, vocab_size, eos_token_ids, limits = json.loads(source)  # which reads lone surrogates, too
    try:
        vocabulary = GrammarVocabulary(Tokenizer.from_json(tokenizer), vocab_size, eos_token_ids)
    except UnsupportedParameter as error:
        control.sendall(error.message.encode() + b"\n")
        return
    del source, tokenizer
    run_trial(encode_grammar(_ORDINARY), vocabulary)  # what is imported and read once now is so in all forked processes
    _silence()
    gc.collect()
    gc.freeze()  # so that no collection in a forked process copies what all share
    control.sendall(READY)
    ForkServer(control, vocabulary, TrialLimits(*limits)).run()


def _silence() -> None:
    """Write nothing to the server's standard error: libraries that run out of memory say so there."""
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
        os.dup2(nowhere.fileno(), sys.stderr.fileno())
