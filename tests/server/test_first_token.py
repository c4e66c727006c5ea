"""The first token of all is announced, once."""

from app.contract.engine_status import EngineStats, StepReport
from app.contract.events import Finished, FinishReason, Timings, TokenDelta, Usage
from app.runtime.startup_timings import StartTimings
from app.server.run import FirstToken
from tests.fakes import FakeClock

TOKEN = TokenDelta("a", 0, 0, (1,), "x")


class Telling:
    """A teller on a clock that stands still, and what came of it."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.seen: list[StepReport] = []
        self.lines: list[str] = []
        self.tell = FirstToken(self.seen.append, StartTimings(clock=self.clock), self.lines.append)

    def step(self, *events: TokenDelta | Finished, num_prefill: int = 0, seconds: float = 1.0) -> None:
        """Let a step end after `seconds`."""
        self.clock.advance(seconds)
        self.tell(StepReport(events, EngineStats(), seconds, num_prefill, 0))


def test_the_time_since_the_start_and_since_the_first_step_over_a_prompt_are_told():
    telling = Telling()
    telling.step(seconds=2.0)
    telling.step(num_prefill=512, seconds=0.25)
    telling.step(TOKEN, num_prefill=100, seconds=0.5)
    assert len(telling.lines) == 1
    assert "2.75 s after the start" in telling.lines[0] and "0.750 s after" in telling.lines[0]


def test_it_is_told_once_and_every_report_is_passed_on():
    telling = Telling()
    for _ in range(3):
        telling.step(TOKEN, num_prefill=1)
    assert len(telling.lines) == 1
    assert len(telling.seen) == 3


def test_an_end_without_a_token_is_no_first_token():
    telling = Telling()
    telling.step(Finished("a", 0, FinishReason.CANCELLED, Usage(1, 0), Timings(0, 0, 0)), num_prefill=1)
    assert telling.lines == []
