"""A client that reads none of its pending data has stalled; one that reads a little now and then has not."""

from app.streaming.flow.ack_monitor import AckMonitor


class Link:
    """A connection whose unread bytes are set by a test."""

    def __init__(self) -> None:
        self.unread = 0
        self.patience: list[bool] = []

    def unread_bytes(self) -> int:
        return self.unread

    def abort(self) -> None:
        """Not called here."""

    def set_kernel_patience(self, *, is_on: bool) -> None:
        self.patience.append(is_on)


def looks(monitor: AckMonitor, link: Link, unread: list[int]) -> list[bool]:
    """Look once a second, with so much unread each time."""
    found = []
    for second, link.unread in enumerate(unread):
        found.append(monitor.has_stalled(100.0 + second))
    return found


def sent(num_bytes: int, timeout_s: float = 3) -> tuple[AckMonitor, Link]:
    link = Link()
    monitor = AckMonitor(link, timeout_s, 1)
    monitor.note_sent(num_bytes)
    return monitor, link


def test_a_client_that_reads_nothing_has_stalled_after_the_timeout():
    assert looks(*sent(100), [100] * 6) == [False] * 3 + [True] * 3


def test_a_client_that_reads_a_byte_now_and_then_has_not_stalled():
    assert not any(looks(*sent(100), [100, 100, 99, 99, 98, 98, 97, 97, 96]))


def test_a_client_that_has_read_everything_has_not_stalled():
    assert not any(looks(*sent(100), [0] * 20))


def test_pings_of_the_protocol_do_not_count_as_read():
    assert looks(*sent(100), [100, 106, 112, 112, 118]) == [False] * 3 + [True] * 2


def test_without_a_timeout_no_client_stalls():
    assert not any(looks(*sent(100, 0), [100] * 50))


def test_the_kernels_timeout_is_off_while_a_monitor_watches():
    monitor, link = sent(0)
    with monitor.watching():
        assert link.patience == [False]
    assert link.patience == [False, True]
