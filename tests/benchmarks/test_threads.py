"""The times of threads, by what the system knows of them."""

import os
import threading
import time

from benchmarks.threads import ThreadTime, threads_of
from tests.own_process import in_own_process

BURNT_S, STALE_S = 0.05, 0.02  # the time of one that has just gone to sleep may be that old


def two_threads() -> list[ThreadTime]:
    """The threads of a process with two, the second of which has worked and sleeps."""
    burnt, over = threading.Event(), threading.Event()

    def work() -> None:
        end = time.thread_time() + BURNT_S
        while time.thread_time() < end:
            pass
        burnt.set()
        over.wait()

    thread = threading.Thread(target=work)
    thread.start()
    burnt.wait()
    found = [*threads_of(os.getpid())]
    over.set()
    thread.join()
    return found


def test_each_thread_has_its_time_and_one_is_the_first():
    found = in_own_process(two_threads)
    assert [one.is_first for one in found].count(True) == 1
    assert max(one.running_s for one in found if not one.is_first) >= BURNT_S - STALE_S
    assert all(one.waited_s >= 0 for one in found)
