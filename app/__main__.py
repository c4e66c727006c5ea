"""Runs the command line: `quire` and `python -m app` are the same."""

import signal
import sys


def run() -> int:
    """Run the command line, and return the exit code. Ctrl-C before and after it ends the process without a traceback.

    Main thread only. SIGINT stays ignored where the caller ignores it, as `nohup` does.
    """
    interrupt = signal.getsignal(signal.SIGINT)
    if interrupt is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from app.cli import main

    signal.signal(signal.SIGINT, interrupt)
    try:
        return main()
    finally:
        if interrupt is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)


if __name__ == "__main__":
    sys.exit(run())
