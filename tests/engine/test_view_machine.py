"""Under any order of calls of the scheduler, a picture equals the books, and the records what was done."""

from hypothesis import settings
from hypothesis.stateful import invariant

from tests.cases import examples
from tests.engine.pictures import Watched
from tests.engine.schedule.test_scheduler_machine import SchedulerMachine


class WatchedMachine(SchedulerMachine):
    """The calls of the scheduler's own machine, with a picture after each."""

    watched: Watched | None = None

    @invariant()
    def the_picture_equals_the_books(self):
        if self.watched is None:
            self.watched = Watched(self.scheduler)
        self.watched.check()

    def teardown(self):
        super().teardown()
        if self.watched is not None:
            self.watched.check()
            self.watched.check_records()


WatchedMachine.TestCase.settings = settings(max_examples=examples(40), stateful_step_count=40)
test_no_order_of_calls_makes_a_picture_differ_from_the_books = WatchedMachine.TestCase
