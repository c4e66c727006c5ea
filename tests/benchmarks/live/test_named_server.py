"""A server whose threads have their names for the system."""

import os
from threading import Thread
from unittest.mock import patch

from benchmarks.live.named_server import run_named
from benchmarks.threads import threads_of


def test_a_thread_is_named_while_it_runs():
    found: list[str] = []
    thread = Thread(target=lambda: found.extend(one.name for one in threads_of(os.getpid())), name="quire-engine")
    with patch.object(Thread, "run", run_named):
        thread.start()
        thread.join()
    assert "quire-engine" in found
