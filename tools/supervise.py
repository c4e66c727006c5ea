"""Runs a server, and starts it again when it has failed: `python -m tools.supervise COMMAND...`, as `make serve` does.

It is started again when it ends with code 70 or 75, or by a signal other than SIGINT and SIGTERM, after a pause that
grows from 1 to 30 s. Any other code is that of this process, too. Signals are passed on, and after one the server is
not started again.
"""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

REASONS = {70: "its engine has failed", 75: "it cannot start now"}
"""The exit codes after which another start may help."""
PASSED_ON = {signal.SIGINT, signal.SIGTERM, signal.SIGQUIT}
_DELIBERATE = (signal.SIGINT, signal.SIGTERM)
_SET_DEATH_SIGNAL = 1  # of prctl


@dataclass(slots=True)
class Backoff:
    """The pauses before further starts, in seconds: from `first_s` each is twice as long, up to `longest_s`.

    They begin again after a run of `reset_after_s`.
    """

    first_s: float = 1.0
    longest_s: float = 30.0
    reset_after_s: float = 60.0
    _num_failures: int = 0  # one after another

    def pause_after(self, run_s: float) -> float:
        """Return the pause after a run of so many seconds."""
        if run_s >= self.reset_after_s:
            self._num_failures = 0
        pause = min(self.longest_s, self.first_s * 2.0**self._num_failures)
        self._num_failures += pause < self.longest_s
        return pause


def supervise(command: Sequence[str], backoff: Backoff) -> int:
    """Run the command until it need not be started again, or a signal has come; return the exit code. Main thread.

    Raises:
        OSError: the command cannot be run.
    """
    # Blocked and waited for, so none is missed between two runs. Others need no handling: they end this process.
    watched = {*PASSED_ON, signal.SIGCHLD}
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a terminal that is closed ends no server
    signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    while True:
        began = time.monotonic()
        # In a group of its own, since a terminal sends Ctrl-C to all processes of a group: it would come twice.
        with subprocess.Popen(command, process_group=0, preexec_fn=_prepare_child) as process:
            is_stopping = False
            while process.poll() is None:
                number = signal.sigwaitinfo(watched).si_signo
                if number != signal.SIGCHLD:
                    is_stopping = True
                    process.send_signal(number)
        ending = ending_of(process.returncode)
        if ending is None or is_stopping:
            return process.returncode if process.returncode >= 0 else 128 - process.returncode
        pause = backoff.pause_after(time.monotonic() - began)
        print(f"{ending} It is started again in {pause:g} s; Ctrl-C stops that.", file=sys.stderr, flush=True)
        if signal.sigtimedwait(PASSED_ON, pause) is not None:
            return 0


def ending_of(status: int) -> str | None:
    """Return a sentence about the end of a server that should be started again, otherwise None.

    `status` is its exit code, or that of the signal that has ended it, negative.
    """
    if status in REASONS:
        return f"The server has ended with code {status}: {REASONS[status]}."
    if status >= 0 or -status in _DELIBERATE:
        return None
    return f"The server was ended by {signal.Signals(-status).name}."


def _prepare_child() -> None:
    """Let the child get signals again, and SIGTERM if its supervisor is killed. In the child, before the command."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {*PASSED_ON, signal.SIGCHLD})
    ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(supervise(sys.argv[1:], Backoff()))
