"""What the compiled grammars of a server take, and what became of requests with one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from app.contract.counts import MEMORY, Counts, counter, derived, gauge


@dataclass(slots=True)
class GrammarCounts(Counts):
    """Memory, processes and failures of grammars."""

    num_bytes: int = gauge("quire_grammar_cache_bytes", "Estimated bytes of the compiled grammars.")
    process_bytes: int = gauge(
        "quire_grammar_process_bytes",
        "Bytes of the processes that try grammars and find masks; 0 before the first grammar.",
    )
    num_processes: int = counter(
        "quire_grammar_processes",
        "Processes that were started to find masks: one with the first grammar, and one more for each that ended.",
    )
    failures: Mapping[str, float] = counter(
        "quire_grammar_failures",
        "Requests that failed because of their grammar: refused before they began; while they were answered, without "
        "an allowed token (no_token) or beyond a limit.",
        by=("reason",),
        start={},
    )

    @derived(MEMORY)
    def bytes_by_kind(self) -> Mapping[str, float]:
        """Return the grammars in this process, and the processes beside it."""
        return {"grammars": self.num_bytes, "grammar_processes": self.process_bytes}
