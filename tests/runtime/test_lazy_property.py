"""A lazy property is computed at the first use, and holds up no other object meanwhile."""

import threading

from app.runtime.lazy_property import lazy_property
from tests.server.processes import HANG_S


class Squared:
    """A number whose square is computed when it is `released`."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.num_computed = 0
        self.entered, self.released = threading.Event(), threading.Event()

    @lazy_property
    def square(self) -> int:
        """The square."""
        self.num_computed += 1
        self.entered.set()
        assert self.released.wait(HANG_S)
        return self.number**2


def test_it_is_computed_once_for_each_object():
    first, second = Squared(3), Squared(4)
    first.released.set()
    second.released.set()
    assert [first.square, second.square, first.square, second.square] == [9, 16, 9, 16]
    assert first.num_computed == second.num_computed == 1


def test_one_that_takes_long_holds_up_no_other_object():
    slow, quick = Squared(3), Squared(4)
    quick.released.set()
    thread = threading.Thread(target=lambda: slow.square)
    thread.start()
    assert slow.entered.wait(HANG_S)
    other = threading.Thread(target=lambda: quick.square, daemon=True)
    other.start()
    assert quick.entered.wait(HANG_S), "the other waits for the slow one"
    slow.released.set()
    thread.join()
    other.join()
    assert slow.square == 9


def test_threads_that_come_at_once_get_the_same_value():
    class Holder:
        barrier = threading.Barrier(2)

        @lazy_property
        def value(self) -> object:
            self.barrier.wait(HANG_S)
            return object()

    holder, found = Holder(), list[object]()
    threads = [threading.Thread(target=lambda: found.append(holder.value)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0] is found[1] is holder.value


def test_it_has_the_documentation_of_its_function():
    assert Squared.square.__doc__ == "The square."
