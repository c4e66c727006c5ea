"""What torch's libraries need of the process: without it they end it, or try for minutes, and say nothing useful."""

from __future__ import annotations

import os
import resource
import signal
from contextlib import suppress
from importlib import import_module

from app.contract.errors import CannotStart

MIN_ADDRESS_SPACE = 2**30
"""Importing torch takes 0.65 GiB of addresses (2026-11); with less, its threads are started again and again."""


def check_torch_can_load() -> None:
    """Check the process before torch is imported. Any thread.

    Raises:
        CannotStart: its working folder was deleted, or it may have too few addresses.
    """
    try:
        os.getcwd()
    except FileNotFoundError:  # oneMKL looks for its libraries from there
        raise CannotStart("the working folder was deleted; change to another one, for example with `cd`") from None
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY and limit < MIN_ADDRESS_SPACE:
        raise CannotStart(
            f"this process may have {limit / 2**20:.0f} MiB of addresses, and torch needs at least "
            f"{MIN_ADDRESS_SPACE // 2**20}; raise the limit with `ulimit -v unlimited`"
        )


def load_torch() -> None:
    """Import torch, if it is installed; Ctrl-C ends the process at once meanwhile. Main thread only.

    torch's libraries abort the process with a message of their own when Python raises KeyboardInterrupt in them.

    Raises:
        CannotStart: see `check_torch_can_load`.
    """
    check_torch_can_load()
    interrupt = signal.getsignal(signal.SIGINT)
    if interrupt is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        with suppress(ImportError, OSError):  # the next import says why
            import_module("torch")
    finally:
        signal.signal(signal.SIGINT, interrupt)
