"""How long it takes to read the answers of an earlier process."""

from __future__ import annotations

import time
from pathlib import Path

from app.journal.entries import Delta, Told
from app.journal.store import Changes, JournalStore
from app.streaming.kept.told_entries import columns_of, restore
from benchmarks.journal.telling import TEXT, TOKEN_IDS, Teller, head_of, stream_of

NUM_STREAMS, NUM_TOKENS = 1000, 512
NUM_IN_BATCHES = 64  # of each stream: those that were told last


def write(path: Path) -> None:
    """Write a journal of many unfinished answers, most of each in one piece, its end in batches of all."""
    store, delta = JournalStore(path), Delta(0, TOKEN_IDS, TEXT)
    numbers = range(1, NUM_STREAMS + 1)
    store.commit(Changes(begun={number: head_of(number) for number in numbers}))
    whole = Told(columns=[columns_of(0, [delta] * (NUM_TOKENS - NUM_IN_BATCHES))])
    store.commit(Changes(written=dict.fromkeys(numbers, whole)))
    for _ in range(NUM_IN_BATCHES):
        store.commit(Changes(deltas=[(number, delta) for number in numbers]))
    store.close()


def restore_s(path: Path) -> float:
    """Return the seconds from opening the file until all answers are streams again.

    Raises:
        RuntimeError: something is missing.
    """
    engine, began = Teller(), time.perf_counter()
    store = JournalStore(path)
    num_tokens = 0
    for stored in store.take_stored():
        stream = stream_of(engine, stored.no)
        restore(stream, stored.told)
        num_tokens += stream.num_tokens
    took = time.perf_counter() - began
    store.close()
    if num_tokens != NUM_STREAMS * NUM_TOKENS:
        raise RuntimeError(f"{num_tokens} tokens were restored of {NUM_STREAMS * NUM_TOKENS}")
    return took
