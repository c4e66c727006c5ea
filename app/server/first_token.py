"""Tells when the first token of the first answer came."""

from __future__ import annotations

from collections.abc import Callable

from app.contract.engine_status import StepReport
from app.contract.events import TokenDelta
from app.runtime.startup_timings import StartTimings


class FirstToken:
    """Passes all step reports on to `observe`, and announces the first token. Loop only."""

    def __init__(
        self, observe: Callable[[StepReport], None], timings: StartTimings, announce: Callable[[str], None]
    ) -> None:
        self._observe = observe
        self._timings = timings
        self._announce = announce
        self._began: float | None = None  # when the first step over a prompt did
        self._is_told = False

    def __call__(self, report: StepReport) -> None:
        """Look at one report."""
        self._observe(report)
        if self._is_told:
            return
        now = self._timings.now()
        if self._began is None and report.num_prefill_tokens:
            self._began = now - report.duration_s
        if self._began is not None and any(isinstance(event, TokenDelta) for event in report.events):
            self._is_told = True
            self._announce(
                f"The first token came {now:.2f} s after the start, {now - self._began:.3f} s after the engine began "
                "with its prompt."
            )
