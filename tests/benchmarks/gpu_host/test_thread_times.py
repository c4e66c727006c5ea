"""CPU time of threads: the loop's, the one that made the device, and others."""

import os
import threading
import time

import pytest

from benchmarks.gpu_host.device import PacedDevice
from benchmarks.gpu_host.thread_times import ThreadTimes
from tests.own_process import in_own_process


def burn(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def burnt_by_three_threads() -> ThreadTimes:
    """The times of the loop's thread, of one that makes a device, and of a third."""
    burnt, over = threading.Barrier(3), threading.Event()

    def engine() -> None:
        PacedDevice(lambda shape, plan: 0.0, 1000)
        burn(0.05)
        burnt.wait()
        over.wait()

    def other() -> None:
        burn(0.03)
        burnt.wait()
        over.wait()

    before = ThreadTimes.of(os.getpid())
    threads = [threading.Thread(target=each) for each in (engine, other)]
    for thread in threads:
        thread.start()
    burnt.wait()
    burn(0.02)
    found = ThreadTimes.of(os.getpid()).since(before)
    over.set()
    for thread in threads:
        thread.join()
    return found


@pytest.mark.long
def test_threads_are_told_apart():
    """In a process of its own: threads of other tests that end meanwhile would count."""
    found = in_own_process(burnt_by_three_threads)
    assert found.engine >= 0.05 and found.others >= 0.03 and found.loop >= 0.02
    assert found.waited >= 0
