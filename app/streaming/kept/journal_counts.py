"""The counts of the journal that the metrics show."""

from __future__ import annotations

from dataclasses import dataclass

from app.contract.counts import Counts, counter, gauge
from app.observe.families import Histogram

COMMIT_S = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


@dataclass(slots=True)
class JournalCounts(Counts):
    """How the journal is, and what it has cost."""

    state: int = gauge(
        "quire_journal_state", "Whether the journal cannot be written (1), and streams are in memory alone."
    )
    num_bytes: int = gauge("quire_journal_bytes", "Bytes of the journal's file, and of the log beside it.")
    restored: dict[str, float] = counter(
        "quire_streams_restored",
        "Answers of an earlier process: replayed (they had ended), continued, failed (begun again too often), or "
        "dropped (of another model or key, or without room).",
        by=("outcome",),
        start=dict.fromkeys(("replayed", "continued", "failed", "dropped"), 0),
    )
    num_errors: int = counter("quire_journal_errors", "Commits of the journal that failed, or took too long.")


def commit_times() -> Histogram:
    """Return an empty histogram of the times of commits."""
    return Histogram(
        "quire_journal_commit_seconds", "Seconds of a commit of the journal, as answers wait for it.", COMMIT_S
    )
