"""Reads the figures of a running engine: those that a person looks at, from the counters that `/metrics` shows."""

from __future__ import annotations

from app.contract.engine_figures import BlockFigures, EngineFigures, Percentiles
from app.contract.engine_status import EngineStats
from app.contract.ports import EngineClient
from app.observe.families import Histogram
from app.observe.metrics import Metrics
from app.runtime.clock import Clock, monotonic

SHORT_S, LONG_S = 5.0, 60.0
CACHED_S = 0.1
"""Who asks more often gets the same figures again."""
_MIN_ELAPSED_S = 1.0  # of a rate
_MS_DIGITS, _RATE_DIGITS, _SHARE_DIGITS = 3, 1, 4


class FiguresReader:
    """Reads the figures of one server; `step_target_ms` is `--itl-target`, if there is one. Loop only."""

    def __init__(
        self,
        engine: EngineClient,
        metrics: Metrics,
        model_name: str,
        step_target_ms: float | None,
        clock: Clock = monotonic,
    ) -> None:
        self._engine = engine
        self._metrics = metrics
        self._model_name = model_name
        self._step_target_ms = step_target_ms
        self._clock = clock
        self._last: EngineFigures | None = None
        self._last_time = 0.0

    def read(self) -> EngineFigures:
        """Return the figures of now, or of at most a tenth of a second ago."""
        if self._last is None or self._clock() >= self._last_time + CACHED_S:
            return self.read_anew()
        return self._last

    def read_anew(self) -> EngineFigures:
        """Return the figures of now: for the last picture of an engine that then idles, older ones would stay."""
        self._last, self._last_time = self._read(), self._clock()
        return self._last

    def _read(self) -> EngineFigures:
        metrics, stats = self._metrics, self._engine.stats()
        sample, short, long = metrics.sample(), metrics.recent.window(SHORT_S), metrics.recent.window(LONG_S)
        seconds = max(short.elapsed_s, _MIN_ELAPSED_S)
        num_queries = sample.num_queries - long.begin.num_queries
        num_steps = sample.num_steps - short.begin.num_steps
        steps_ms = 1000 * (sample.steps_s - short.begin.steps_s)
        num_prompt_tokens = sample.num_prompt_tokens - short.begin.num_prompt_tokens
        return EngineFigures(
            model=self._model_name,
            state=self._engine.health().state,
            running=stats.queues.num_running,
            waiting=stats.queues.num_waiting,
            paused=stats.queues.num_paused,
            blocks=_blocks(stats),
            tokens_per_s=round((sample.num_tokens - short.begin.num_tokens) / seconds, _RATE_DIGITS),
            prompt_tokens_per_s=round(num_prompt_tokens / seconds, _RATE_DIGITS),
            first_token_ms=_percentiles(metrics.first_token_s, long.begin.first_token),
            between_tokens_ms=_percentiles(metrics.steps.inter_token_s, long.begin.between_tokens),
            hit_rate=_ratio(sample.num_hits - long.begin.num_hits, num_queries, _SHARE_DIGITS),
            step_ms=_ratio(steps_ms, num_steps, _MS_DIGITS),
            step_target_ms=self._step_target_ms,
            steps_over_target=sample.num_over_target - long.begin.num_over_target,
            preemptions=stats.preemption.num_preemptions,
            swaps=stats.preemption.num_swaps,
            brownout=stats.brownout_level,
            faults=stats.recovery.num_faults,
        )


def _blocks(stats: EngineStats) -> BlockFigures:
    blocks = stats.blocks
    by_state = {name: int(count) for name, count in blocks.by_state.items()}
    return BlockFigures(total=blocks.num_blocks, **by_state, host=blocks.num_host)


def _ratio(part: float, whole: float, digits: int) -> float | None:
    return round(part / whole, digits) if whole else None


def _percentiles(histogram: Histogram, since: tuple[int, ...]) -> Percentiles | None:
    """Return the percentiles of a histogram of seconds in milliseconds; None if it has not grown."""
    found = [histogram.quantile(share, since) for share in (0.5, 0.95, 0.99)]
    values = [round(1000 * each, _MS_DIGITS) for each in found if each is not None]
    return Percentiles(*values) if values else None
