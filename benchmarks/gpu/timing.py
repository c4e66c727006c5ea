"""How long the GPU takes for a piece of work, without the host's share: replays of CUDA graphs between two events."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence

import torch

Call = Callable[[], object]

TURNS = 2  # each row is measured twice
REPLAYS = 7  # of which the median counts
GRAPH_S = 4e-3  # of work in a graph, so that its launch is nothing
MAX_CALLS = 1000
ROTATED_BYTES = 130 << 20  # more than twice an H200's L2


def num_copies(num_bytes: float, at_most: int = 64) -> int:
    """Return how many sets of inputs a kernel needs that touches so many bytes, lest it find them in the cache."""
    return max(1, min(at_most, -(-ROTATED_BYTES // max(1, int(num_bytes)))))


def time_calls(calls: Sequence[Call], turns: int = TURNS) -> tuple[float, ...]:
    """Return the seconds of one call, once for each turn; the calls do the same on inputs of their own.

    Where the calls cannot be captured, they are timed one behind the other, host included.
    """
    for call in calls:  # compiles, and allocates what stays
        call()
    if not torch.cuda.is_available():
        return tuple(_on_host(calls) for _ in range(turns))
    torch.cuda.synchronize()
    once = _eager(calls)
    count = min(MAX_CALLS, max(len(calls), int(GRAPH_S / max(once, 1e-7))))
    chosen = [calls[index % len(calls)] for index in range(count)]
    graph = capture(lambda: [call() for call in chosen])
    return tuple(statistics.median(replay_seconds(graph, REPLAYS)) / count for _ in range(turns))


def capture(work: Call, *, keep_graph: bool = False) -> torch.cuda.CUDAGraph:
    """Return work, that has run before, as a graph; captured on a stream of its own."""
    graph = torch.cuda.CUDAGraph(keep_graph=keep_graph)
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            work()
        finally:
            graph.capture_end()
    torch.cuda.synchronize()
    return graph


def replay_seconds(graph: torch.cuda.CUDAGraph, count: int) -> Iterator[float]:
    """Yield the seconds of single replays; the first one, which warms up, is not among them."""
    graph.replay()
    torch.cuda.synchronize()
    for _ in range(count):
        yield event_seconds(graph.replay)


def event_seconds(work: Call) -> float:
    """Return the seconds that the GPU takes for what is issued to the current stream."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begin.record()
    work()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1000


def _eager(calls: Sequence[Call]) -> float:
    return event_seconds(lambda: [call() for call in calls]) / len(calls)


def _on_host(calls: Sequence[Call]) -> float:
    began = time.perf_counter()
    for call in calls:
        call()
    return (time.perf_counter() - began) / len(calls)
