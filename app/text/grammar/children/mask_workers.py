"""The server's side of the process that finds masks: starts it, and starts another one when it has ended."""

from __future__ import annotations

import os
import select
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from app.contract.errors import CannotStart
from app.text.grammar.children.fork_client import ForkClient
from app.text.grammar.children.mask_memory import NOTES_BYTES, NUM_NOTES, MaskMemory, new_memory_file
from app.text.grammar.children.mask_messages import READ_BYTES, Messages, Reply, Setup, Turn, encode
from app.text.grammar.children.shortage import Shortage
from app.text.grammar.children.work_times import culprit_of, suspects_of


@dataclass(slots=True, eq=False)
class WorkerLink:
    """The socket of one process, which the engine thread uses until another thread may `close` it.

    From its end on, `culprit` is the sequence that has taken too long, and `suspects` are those that it worked on.
    """

    steps: socket.socket
    culprit: int = 0
    suspects: frozenset[int] = frozenset()
    _replies: Messages[Reply] = field(default_factory=lambda: Messages(Reply))
    _unread: bytes = b""  # what came while something was sent
    _lock: threading.Lock = field(default_factory=threading.Lock)  # held while the socket is used

    def send(self, turn: Turn) -> None:
        """Send a turn, unless the process has ended. Engine thread only.

        What the process says meanwhile is kept for `read`: it reads nothing while nobody reads what it says.
        """
        data = memoryview(encode(turn))
        with self._lock, suppress(OSError, ValueError):  # the latter of a socket that is closed
            while data:
                try:
                    data = data[self.steps.send(data, socket.MSG_DONTWAIT) :]
                except BlockingIOError:
                    if self._events(select.POLLIN | select.POLLOUT) & ~select.POLLOUT:
                        self._unread += self.steps.recv(READ_BYTES)

    def read(self, timeout: float) -> list[Reply] | None:
        """Read the replies that the process sends within a time; None if it has ended. Engine thread only."""
        data, self._unread = self._unread, b""
        with self._lock, suppress(OSError, ValueError):
            if not data and not self._events(select.POLLIN, timeout):
                return []
            data = data or self.steps.recv(READ_BYTES)
        return self._replies.feed(data) if data else None

    def _events(self, wanted: int, timeout: float | None = None) -> int:
        """Wait for events of the socket; 0 if none come in time. Not by `select`: it knows only 1,024 descriptors."""
        poll = select.poll()
        poll.register(self.steps, wanted)
        found = poll.poll(None if timeout is None else 1000 * timeout)
        return found[0][1] if found else 0

    def close(self) -> None:
        """End the process: it reads the end of its socket, and so does who reads one here. Any thread. Idempotent."""
        with suppress(OSError):
            self.steps.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self.steps.close()


class MaskWorkers:
    """Keeps a process that finds masks, from the first call of `current` on. Any thread.

    `children` returns what forks them, once the model is loaded.

    Attributes:
        memory: what it shares with this process; there from the first process on.
        num_started: how many processes were started.
        is_closed: whether no other one will be.
    """

    def __init__(self, children: Callable[[], ForkClient | None], setup: Setup) -> None:
        self.memory: MaskMemory | None = None
        self.num_started = 0
        self._children = children
        self._setup = setup
        self._descriptor = -1
        self._link: WorkerLink | None = None
        self.is_closed = False
        self._lock = threading.Lock()

    def current(self) -> WorkerLink | None:
        """Return the process that runs, a new one if there is none; None while none can be started."""
        with self._lock:
            if self._link is None and not self.is_closed:
                children = self._children()
                with suppress(CannotStart, Shortage, OSError):  # that which forks has ended, or there is no room
                    self._link = None if children is None else self._start(children)
                if self._link is None and children is not None:
                    children.start_soon()
            return self._link

    def renew(self, link: WorkerLink) -> None:
        """Note why a process has ended; `current` starts another one."""
        with self._lock:
            if self._link is not link:
                return
            assert self.memory is not None
            notes = self.memory.notes.tolist()
            link.culprit, link.suspects = culprit_of(notes), suspects_of(notes)
            link.close()
            self._link = None

    def close(self) -> None:
        """End the process, and start no other. Idempotent."""
        with self._lock:
            self.is_closed = True
            if self._link is not None:
                self._link.close()
                self._link = None
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1

    def _start(self, children: ForkClient) -> WorkerLink:
        setup = self._setup
        if self.memory is None:
            self._descriptor = new_memory_file(NOTES_BYTES + 4 * setup.num_words * setup.num_regions)
            self.memory = MaskMemory(self._descriptor, setup.num_words, setup.num_regions)
        for index in range(NUM_NOTES):
            self.memory.notes[index] = 0
        link = WorkerLink(children.fork_masks(self._descriptor))
        link.steps.sendall(encode(setup))
        self.num_started += 1
        return link
