"""Forks programs in which torch is imported already: `python -m tests.server.forker`, with a socket as its stdin.

Each message is one program as JSON: the arguments of `python -m`, its environment and its folder. With it come the
descriptors of its stdin, stdout and stderr, and one that gets the number of its process, and at its end the exit code.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import signal
import socket
import sys
from contextlib import suppress

import torch  # noqa: F401  that takes most of the time of a start

from app.commands import serve  # noqa: F401
from app.engine import build  # noqa: F401
from app.server import run  # noqa: F401

MAX_BYTES = 1 << 17
Program = tuple[str, list[str]]


def next_program(requests: socket.socket) -> Program | None:
    """Return a module and its arguments in each new process; None in this one when there are no more requests."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, MAX_BYTES, 4)
        if not message:
            return None
        if os.fork() == 0:
            *streams, report = descriptors
            requests.close()
            if (child := os.fork()) == 0:
                os.close(report)
                return become(message, streams)
            keep(child, report, streams)
        for descriptor in descriptors:
            os.close(descriptor)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def become(message: bytes, streams: list[int]) -> Program:
    """Give this process the streams, the environment and the folder of a program, and return which it is."""
    program = json.loads(message)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    # These objects know whether a stream can seek.
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    os.environ.clear()
    os.environ.update(program["environment"])
    os.chdir(program["folder"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    module, *arguments = program["arguments"]
    return module, arguments


def keep(child: int, report: int, streams: list[int]) -> None:
    """Report the number of a child, and its exit code when it has ended; this process ends, too."""
    for stream in streams:
        os.close(stream)
    with suppress(BrokenPipeError):
        os.write(report, b"%d\n" % child)
        _, status = os.waitpid(child, 0)
        os.write(report, b"%d\n" % os.waitstatus_to_exitcode(status))
    os._exit(0)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests
    gc.freeze()
    with socket.socket(fileno=os.dup(0)) as incoming:
        found = next_program(incoming)
    if found is not None:
        name, sys.argv[1:] = found
        runpy.run_module(name, run_name="__main__", alter_sys=True)
