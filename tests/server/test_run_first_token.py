"""The first token of the first request is announced once."""

from app.contract.engine_status import EngineStats, StepReport
from app.contract.events import ChoiceEnd, Finished, FinishReason, Timings, TokenDelta, Usage
from app.runtime.start_timings import StartTimings
from app.server.run import FirstToken
from tests.fakes import FakeClock

TOKEN = TokenDelta("a", 0, 0, (1,), "x")


class AnnouncedSteps:
    """A `FirstToken` on a fake clock, the reports that it passed on, and the lines that it announced."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.reports: list[StepReport] = []
        self.lines: list[str] = []
        self.observe = FirstToken(self.reports.append, StartTimings(clock=self.clock), self.lines.append)

    def step(self, *events: TokenDelta | Finished, num_prefill: int = 0, seconds: float = 1.0) -> None:
        """Report a step of `seconds`."""
        self.clock.advance(seconds)
        self.observe(StepReport(events, EngineStats(), seconds, num_prefill, 0))


def test_the_times_since_the_start_and_since_the_first_prefill_are_announced():
    steps = AnnouncedSteps()
    steps.step(seconds=2.0)
    steps.step(num_prefill=512, seconds=0.25)
    steps.step(TOKEN, num_prefill=100, seconds=0.5)
    assert len(steps.lines) == 1
    assert "2.75 s after the start" in steps.lines[0] and "0.750 s after" in steps.lines[0]


def test_the_first_token_is_announced_once_and_every_report_is_passed_on():
    steps = AnnouncedSteps()
    for _ in range(3):
        steps.step(TOKEN, num_prefill=1)
    assert len(steps.lines) == 1
    assert len(steps.reports) == 3


def test_a_finish_without_a_token_announces_nothing():
    steps = AnnouncedSteps()
    steps.step(Finished("a", 0, ChoiceEnd(FinishReason.CANCELLED), Usage(1, 0), Timings(0, 0, 0)), num_prefill=1)
    assert steps.lines == []
