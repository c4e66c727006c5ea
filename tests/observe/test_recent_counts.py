"""How counters were lately: exact while nothing happened, up to a second older while the engine works."""

from app.observe.recent_counts import RecentCounts, Sample
from tests.fakes import FakeClock


class Engine:
    """Counts one token for each report."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.num_tokens = 0
        self.recent = RecentCounts(lambda: Sample(num_tokens=self.num_tokens), self.clock)

    def work(self, seconds: float, interval: float = 0.1) -> None:
        for _ in range(round(seconds / interval)):
            self.clock.now += interval
            self.recent.before_report()
            self.num_tokens += 1

    def new_tokens(self, seconds: float) -> tuple[int, float]:
        begin, elapsed = self.recent.window(seconds)
        return self.num_tokens - begin.num_tokens, round(elapsed, 3)


def test_a_new_server_is_asked_from_its_start():
    engine = Engine()
    assert engine.new_tokens(5) == (0, 0)
    engine.work(2)
    assert engine.new_tokens(5) == (20, 2)


def test_while_the_engine_works_a_window_is_up_to_a_second_longer():
    engine = Engine()
    engine.work(70)
    tokens, elapsed = engine.new_tokens(5)
    assert 5 <= elapsed <= 6.2 and abs(tokens - 10 * elapsed) <= 1
    tokens, elapsed = engine.new_tokens(60)
    assert 60 <= elapsed <= 61.2 and abs(tokens - 10 * elapsed) <= 1


def test_work_before_a_rest_is_not_counted_as_new():
    engine = Engine()
    engine.work(10)
    engine.clock.now += 30
    assert engine.new_tokens(5) == (0, 5)
    engine.work(1)
    assert engine.new_tokens(5) == (10, 5)
    engine.clock.now += 100
    assert engine.new_tokens(60) == (0, 60)


def test_only_a_minute_is_kept():
    engine = Engine()
    engine.work(300)
    assert len(engine.recent._taken) <= 63
