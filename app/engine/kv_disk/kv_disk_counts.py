"""The counts of the KV cache on disk that the metrics show."""

from __future__ import annotations

from dataclasses import dataclass

from app.contract.counts import Counts, counter, gauge

DAMAGED, FAILED, SLOWER = "damaged", "failed", "slower"
"""Why a prompt is computed though its beginning is on disk."""


@dataclass(slots=True)
class KVDiskCounts(Counts):
    """How much is there, and what was moved. Each field is counted by one thread."""

    num_blocks: int = gauge("quire_kv_disk_blocks", "KV blocks on disk (`--kv-disk`).")
    num_bytes: int = gauge("quire_kv_disk_bytes", "Bytes of the KV blocks on disk.")
    num_written: int = counter("quire_kv_disk_blocks_written", "KV blocks written to disk.")
    num_read: int = counter("quire_kv_disk_blocks_read", "KV blocks read from disk.")
    read_s: float = counter("quire_kv_disk_read_seconds", "Seconds that reading KV blocks from disk took.")
    num_dropped: int = counter(
        "quire_kv_disk_blocks_dropped", "KV blocks that were not written, since the disk is too slow, full or fails."
    )
    misses: dict[str, float] = counter(
        "quire_kv_disk_misses",
        "Prompts that were computed though their beginnings are on disk: damaged (another checksum or content), failed "
        "(it cannot be read), or slower (to read than to compute).",
        by=("reason",),
        start=dict.fromkeys((DAMAGED, FAILED, SLOWER), 0),
    )
