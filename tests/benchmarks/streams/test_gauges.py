"""Gauges of a process: CPU time that only grows, memory, and lags only while they are watched."""

import asyncio
import threading
import time

from benchmarks.streams.gauges import Gauges, thread_cpu_s


async def test_gauges_have_times_memory_and_context_switches():
    gauges = Gauges(lambda: 1.5)
    before = gauges.read()
    sum(range(200_000))
    after = gauges.read()
    assert after["source_s"] == 1.5
    assert after["rss_kib"] > 1000
    assert after["pss_kib"] is None or after["pss_kib"] <= after["rss_kib"]
    for name in ("time", "process_s", "loop_s"):
        assert after[name] > before[name]
    for name in ("switches", "forced_switches", "waited_s"):
        assert after[name] >= before[name]


async def test_a_blocked_loop_lags():
    gauges = Gauges(lambda: 0.0)
    gauges.watch(True)
    await asyncio.sleep(0.03)
    time.sleep(0.06)  # noqa: ASYNC251  this is the lag
    await asyncio.sleep(0.03)
    gauges.watch(False)
    assert gauges.lags().longest >= 0.045
    await asyncio.sleep(0.03)
    assert len(gauges.lags()) <= 1  # the last timer


def test_the_cpu_time_of_a_thread_is_found_by_its_name():
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            sum(range(1000))

    thread = threading.Thread(target=work, name="quire-test-worker")
    thread.start()
    while not (used := thread_cpu_s("quire-test-worker")):
        pass
    stop.set()
    thread.join()
    assert used > 0
    assert thread_cpu_s("quire-test-worker") == 0
