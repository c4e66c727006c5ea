"""The process that finds masks, played by a test: it acts on the test's own thread whenever it is sent something."""

from __future__ import annotations

import socket
from collections.abc import Callable

from app.contract.errors import CannotStart
from app.text.grammar.children.mask_messages import Drafted, Messages, Ready, Reply, Setup, Took, Turn, encode


class ScriptedProcess:
    """Answers at once, but for the sequences that it `holds`; `play` may replace what it does.

    It knows sequences by what they have taken, in `tokens`.
    """

    def __init__(self, play: Callable[[ScriptedProcess, Turn], None] | None = None) -> None:
        self.turns: list[Turn] = []
        self.tokens: dict[int, tuple[int, ...]] = {}
        self.holds: set[int] = set()
        self.ours, self._theirs = socket.socketpair()
        self._play = play
        self._setup, self._turns = Messages(Setup), Messages(Turn)
        self._is_set_up = False

    def receive(self, data: bytes) -> None:
        """Act on what the server sends."""
        if not self._is_set_up:
            self._is_set_up = bool(self._setup.feed(data))
            return
        for turn in self._turns.feed(data):
            self.turns.append(turn)
            (self._play or ScriptedProcess.answer)(self, turn)

    def answer(self, turn: Turn) -> None:
        """Do what a process does."""
        for number in turn.ends:
            self.tokens.pop(number, None)
        for start in turn.starts:
            self.tokens[start.sequence_id] = start.token_ids
            self.find(start.sequence_id)
        for take in turn.takes:
            self.tokens[take.sequence_id] += take.token_ids
            self.reply(took=(Took(take.sequence_id, len(take.token_ids), False, None),))
            self.find(take.sequence_id)
        for draft in turn.drafts:
            self.reply(drafted=(Drafted(draft.sequence_id, len(draft.token_ids)),))

    def find(self, number: int) -> None:
        """Find the mask of a sequence."""
        if number not in self.holds:
            self.reply(ready=(Ready(number, len(self.tokens[number]), False, None, ()),))

    def reply(self, **parts: tuple) -> None:
        """Say something to the server."""
        self._theirs.sendall(encode(Reply(**parts)))

    def end(self) -> None:
        """End, by whatever reason."""
        self._theirs.close()


class _Steps:
    """The engine's end of a scripted process."""

    def __init__(self, process: ScriptedProcess) -> None:
        self._process = process
        self.fileno, self.recv = process.ours.fileno, process.ours.recv
        self.shutdown, self.close = process.ours.shutdown, process.ours.close

    def sendall(self, data: bytes) -> None:
        """Let the process act."""
        if self._process._theirs.fileno() < 0:
            raise BrokenPipeError
        self._process.receive(data)

    def send(self, data: memoryview, flags: int) -> int:
        """Let the process act; it takes all."""
        self.sendall(bytes(data))
        return len(data)


class ScriptedChildren:
    """Starts scripted processes, in place of a ForkClient; `plays` are for the first ones, one each."""

    def __init__(self, *plays: Callable[[ScriptedProcess, Turn], None] | None) -> None:
        self.processes: list[ScriptedProcess] = []
        self.can_fork = True
        self.num_starts = 0
        self._plays = list(plays)

    def fork_masks(self, memory: int) -> _Steps:
        if not self.can_fork:
            raise CannotStart("It does not run.")
        play = self._plays.pop(0) if self._plays else None
        self.processes.append(ScriptedProcess(play))
        return _Steps(self.processes[-1])

    def start_soon(self) -> None:
        self.num_starts += 1

    def close(self) -> None:
        """Close the sockets."""
        for each in self.processes:
            each.end()
