"""Reports the time of the first token of the first request."""

from __future__ import annotations

from collections.abc import Callable

from app.contract.engine_status import StepReport
from app.contract.events import TokenDelta
from app.runtime.startup_timings import StartTimings


class FirstToken:
    """Passes all step reports to `observe`, and announces the first token. Loop only."""

    def __init__(
        self, observe: Callable[[StepReport], None], timings: StartTimings, announce: Callable[[str], None]
    ) -> None:
        self._observe = observe
        self._timings = timings
        self._announce = announce
        self._began: float | None = None  # when the first prefill step began
        self._is_announced = False

    def __call__(self, report: StepReport) -> None:
        """Handle one step report."""
        self._observe(report)
        if self._is_announced:
            return
        now = self._timings.now()
        if self._began is None and report.num_prefill_tokens:
            self._began = now - report.duration_s
        if self._began is not None and any(isinstance(event, TokenDelta) for event in report.events):
            self._is_announced = True
            self._announce(
                f"First token: {now:.2f} s after the start of the process, {now - self._began:.3f} s after the start "
                "of its prefill."
            )
