"""The figures of an engine are what /metrics shows, as rates and percentiles of the last minute."""

import pytest

from app.config.cache_config import CacheConfig
from app.contract.engine_counts import BlockCounts, BudgetCounts, PreemptionCounts, QueueCounts, StartCounts
from app.contract.engine_status import EngineStats, StepReport
from app.contract.events import ChoiceEnd, Finished, FinishReason, Timings, TokenDelta, Usage
from app.observe.families import Histogram
from app.observe.figures_reader import FiguresReader
from app.observe.metrics import Metrics
from app.observe.recent_counts import RecentCounts
from tests.fakes import FakeClock, FakeEngine

STATS = EngineStats(
    brownout_level=1,
    queues=QueueCounts(num_running=3, num_waiting=2, num_paused=1),
    blocks=BlockCounts(num_blocks=100, num_free=60, num_cached=20, num_fenced=5, num_host=7),
    starts=StartCounts(num_prefix_queries=80, num_prefix_hits=20),
    preemption=PreemptionCounts(num_preemptions=4, num_swaps=1),
    budget=BudgetCounts(num_over_target=2),
)


class Server:
    """Metrics, and the figures of them, by a clock."""

    def __init__(self, step_target_ms: float | None = 50.0) -> None:
        self.clock, self.engine = FakeClock(), FakeEngine()
        self.metrics = Metrics("guide", CacheConfig())
        self.metrics.recent = RecentCounts(self.metrics.sample, self.clock)
        self.reader = FiguresReader(self.engine, self.metrics, "guide", step_target_ms, self.clock)

    def work(self, *events, seconds: float = 0.004, tokens: int = 1, stats: EngineStats = STATS) -> None:
        report = StepReport(tuple(events), stats, seconds, 0, tokens)
        self.engine._receive(report)
        self.metrics.observe(report)

    def read(self):
        self.clock.now += 1
        return self.reader.read()


def test_an_idle_server_has_figures_without_times():
    figures = Server().read()
    assert (figures.model, figures.state, figures.tokens_per_s, figures.running) == ("guide", "ready", 0.0, 0)
    assert (figures.first_token_ms, figures.between_tokens_ms, figures.hit_rate, figures.step_ms) == (None,) * 4


def test_figures_are_those_of_the_counters():
    server = Server()
    server.read()
    server.work(TokenDelta("a", 0, 1, tuple(range(8)), "x"), tokens=8)
    figures = server.read()
    assert (figures.running, figures.waiting, figures.paused, figures.brownout) == (3, 2, 1, 1)
    blocks = figures.blocks
    assert (blocks.total, blocks.free, blocks.cached, blocks.used, blocks.fenced, blocks.host) == (
        100,
        40,
        20,
        35,
        5,
        7,
    )
    assert (figures.preemptions, figures.swaps, figures.steps_over_target, figures.faults) == (4, 1, 2, 0)
    assert (figures.hit_rate, figures.step_ms, figures.step_target_ms) == (0.25, 4.0, 50.0)
    assert figures.tokens_per_s == pytest.approx(8 / 2)
    assert figures.between_tokens_ms is not None and 2.5 < figures.between_tokens_ms.p50 <= 5


def test_times_to_the_first_token_are_those_of_the_last_minute():
    server = Server()
    server.work(TokenDelta("a", 0, 1, (1,), "x"))
    server.work(Finished("a", 0, ChoiceEnd(FinishReason.STOP), Usage(5, 1), Timings(0.01, 0.3, 0.4)), tokens=0)
    figures = server.read()
    assert figures.first_token_ms is not None and 250 < figures.first_token_ms.p50 <= 500
    server.clock.now += 120
    assert server.read().first_token_ms is None


def test_whoever_asks_again_at_once_gets_the_same():
    server = Server()
    first = server.read()
    server.work(TokenDelta("a", 0, 1, (1,), "x"))
    assert server.reader.read() is first
    assert server.read() is not first


def test_figures_beside_a_picture_are_those_of_now():
    server = Server()
    assert server.read().hit_rate is None
    server.work(tokens=0)
    assert server.reader.read().hit_rate is None
    assert server.reader.read_anew().hit_rate == 0.25
    assert server.reader.read().hit_rate == 0.25


def test_without_a_target_there_is_none():
    assert Server(None).read().step_target_ms is None


def test_quantiles_are_interpolated_and_leave_out_what_was_before():
    histogram = Histogram("x", "X.", [1, 2, 4])
    assert histogram.quantile(0.5, histogram.counts) is None
    histogram.observe(0.5, 100)
    before = histogram.counts
    histogram.observe(3, 4)
    assert histogram.quantile(0.5, before) == 3 and histogram.quantile(1, before) == 4
    histogram.observe(1000, 96)
    assert histogram.quantile(0.99, before) == 4
