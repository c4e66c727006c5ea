"""The counts of the journal that the metrics show."""

from __future__ import annotations

from dataclasses import dataclass

from app.contract.counts import Counts, counter, gauge


@dataclass(slots=True)
class JournalCounts(Counts):
    """How the journal is, and what it has cost."""

    state: int = gauge(
        "quire_journal_state", "Whether the journal cannot be written (1), and streams are in memory alone."
    )
    num_bytes: int = gauge("quire_journal_bytes", "Bytes of the journal's file, and of the log beside it.")
    num_commits: int = counter("quire_journal_commits", "Commits of the journal.")
    commit_s: float = counter("quire_journal_commit_seconds", "Seconds that commits of the journal took.")
    restored: dict[str, float] = counter(
        "quire_streams_restored",
        "Answers of an earlier process: replayed (they had ended), continued, failed (begun again too often), or "
        "dropped (of another model or key, or without room).",
        by=("outcome",),
        start=dict.fromkeys(("replayed", "continued", "failed", "dropped"), 0),
    )
    num_errors: int = counter("quire_journal_errors", "Commits of the journal that failed, or took too long.")
