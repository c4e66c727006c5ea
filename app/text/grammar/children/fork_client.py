"""The server's side of the process that forks (see fork_server)."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from app.contract.errors import CannotStart, UnsupportedParameter
from app.text.grammar.children.fork_server import MASKS, READY, SHORT_TRIAL, TRIAL, greeting
from app.text.grammar.children.shortage import Shortage, telling_shortages
from app.text.grammar.children.trial import GrammarLimits
from app.text.tokens.tokenizer import Tokenizer

_PACKAGE = Path(__file__).resolve().parents[3]
_CHILD = "from app.text.grammar.children.fork_server import main; main()"
MAX_LINE = 4096
START_S = 60.0  # a process that is not ready then is ended; it takes 0.3 to 5 s


class ForkClient:
    """Starts the process that forks, and gives it orders. Any thread.

    Nothing is started before `start` is called.

    Attributes:
        greeting: makes the first bytes that the process is sent.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        vocab_size: int,
        eos_token_ids: Sequence[int],
        limits: GrammarLimits | None = None,
    ) -> None:
        tokenizer.read_source()  # now, while the model is loaded: the interpreter's lock may be held for long
        self.greeting = partial(greeting, tokenizer, vocab_size, eos_token_ids, limits or GrammarLimits())
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._is_closed = False
        self._refusal: str | None = None  # why the library cannot read the tokenizer
        self._starting: threading.Thread | None = None
        self._lock = threading.Lock()

    @property
    def pid(self) -> int | None:
        """The id of the process; None while there is none."""
        process = self._process
        return None if process is None or process.poll() is not None else process.pid

    def start(self) -> None:
        """Start the process, unless it runs, and wait until it can fork: 0.3 to 5 s. Blocks.

        Raises:
            UnsupportedParameter: the grammar library cannot read the model's tokenizer.
            CannotStart: the process cannot be started, or ends at once.
            Shortage: the system has too little of something for another process.
        """
        with self._lock:
            self._check_open()
            if self._is_running():
                return
            self._end()
            with telling_shortages():
                ours, theirs = socket.socketpair()
            try:
                with theirs:
                    self._process = _run(theirs)
                self._check_open()  # `close` may have come before there was anything to end
                answer = self._greet(ours)
                if answer == READY:
                    self._control = ours  # not before: orders come behind the greeting
                    return
            finally:
                if self._control is not ours:
                    ours.close()
            self._end()
            if answer:
                self._refusal = answer.decode("utf-8", "replace").strip()
                self._check_open()
            raise CannotStart("The process that tries grammars has ended at its start; see the server log.")

    def start_soon(self) -> None:
        """Start the process on a thread, unless it runs or starts already. Does not block."""
        if self._starting is None or not self._starting.is_alive():
            self._starting = threading.Thread(target=self._try_start, name="quire-children", daemon=True)
            self._starting.start()

    def _try_start(self) -> None:
        with suppress(CannotStart, Shortage, UnsupportedParameter):
            self.start()

    def fork(self) -> socket.socket:
        """Have a process forked for a trial, and return our end of its socket. Does not block.

        Raises:
            CannotStart: the process that forks does not run; `start` it.
            Shortage: see `start`.
        """
        return self._fork(TRIAL)

    def fork_short(self) -> socket.socket:
        """Have a process forked for a short trial, as `fork` does. Does not block.

        Raises:
            CannotStart, Shortage: see `fork`.
        """
        return self._fork(SHORT_TRIAL)

    def fork_masks(self, memory: int) -> socket.socket:
        """Have the process forked that finds masks, and return our end of its socket. Does not block.

        `memory` is the descriptor of the shared memory.

        Raises:
            CannotStart, Shortage: see `fork`.
        """
        return self._fork(MASKS, memory)

    def _fork(self, order: bytes, *descriptors: int) -> socket.socket:
        with telling_shortages():
            ours, theirs = socket.socketpair()
        try:
            with theirs:
                self._order(order, theirs.fileno(), *descriptors)
        except BaseException:
            ours.close()
            raise
        return ours

    def _order(self, order: bytes, *descriptors: int) -> None:
        control = self._control
        try:
            if control is None:
                raise OSError
            with telling_shortages():
                socket.send_fds(control, [order], list(descriptors), socket.MSG_DONTWAIT)
        except OSError:
            raise CannotStart("The process that tries grammars does not run.") from None

    def close(self) -> None:
        """End the process and all that it has forked, also while it starts. Idempotent."""
        self._is_closed = True
        process = self._process
        if process is not None and process.poll() is None:
            with suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
        with self._lock:  # a start has ended with its process
            self._end()

    def _is_running(self) -> bool:
        """Return whether the process has its end of the socket; a killed one loses it before it can be waited for."""
        try:
            return self._control is not None and bool(self._control.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except BlockingIOError:
            return True
        except OSError:
            return False

    def _check_open(self) -> None:
        if self._is_closed:
            self._end()
            raise CannotStart("The server is shutting down.")
        if self._refusal is not None:
            raise UnsupportedParameter(self._refusal)

    def _greet(self, control: socket.socket) -> bytes:
        """Send the greeting; return the line that comes back, empty if the process has ended or is late."""
        try:
            control.settimeout(START_S)
            for part in self.greeting():  # while the process imports, and reads what has come
                control.sendall(part)
            with control.makefile("rb", buffering=0) as lines:
                answer = lines.readline(MAX_LINE)
            control.settimeout(None)
            return answer
        except OSError:
            return b""

    def _end(self) -> None:
        process, self._process = self._process, None
        control, self._control = self._control, None
        if process is not None:
            process.kill()
            process.wait()
        if control is not None:
            control.close()


def _run(control: socket.socket) -> subprocess.Popen[bytes]:
    path = os.pathsep.join([str(_PACKAGE.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    # A library's own threads would be missing in the forked processes.
    environment = {**os.environ, "PYTHONPATH": path, "TOKENIZERS_PARALLELISM": "false"}
    command = [sys.executable, "-P", "-c", _CHILD, str(control.fileno())]
    try:
        with telling_shortages():
            return subprocess.Popen(
                command,
                pass_fds=[control.fileno()],
                stdin=subprocess.DEVNULL,
                env=environment,
                # So that it ends with all it has forked, and Ctrl-C reaches the server alone. It has no session of its
                # own: Linux may divide the cores among sessions first, and then a trial of milliseconds takes seconds.
                process_group=0,
            )
    except OSError as error:
        raise CannotStart(f"The process that tries grammars cannot be started: {error.strerror}.") from None
