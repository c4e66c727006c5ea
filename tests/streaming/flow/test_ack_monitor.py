"""A client that reads none of its pending data has stalled; one that reads a little has not."""

from app.streaming.flow.ack_monitor import AckMonitor


class FakeConnection:
    """A connection whose unread bytes are set by a test."""

    def __init__(self) -> None:
        self.unread = 0
        self.kernel_timeouts: list[bool] = []

    def unread_bytes(self) -> int:
        return self.unread

    def abort(self) -> None:
        """Not called here."""

    def set_kernel_patience(self, *, is_on: bool) -> None:
        self.kernel_timeouts.append(is_on)


def stalled_each_second(monitor: AckMonitor, connection: FakeConnection, unread: list[int]) -> list[bool]:
    """Check once a second with these numbers of unread bytes; return the results."""
    found = []
    for second, connection.unread in enumerate(unread):
        found.append(monitor.has_stalled(100.0 + second))
    return found


def monitor_after(num_bytes: int, timeout_s: float = 3) -> tuple[AckMonitor, FakeConnection]:
    connection = FakeConnection()
    monitor = AckMonitor(connection, timeout_s, 1)
    monitor.note_sent(num_bytes)
    return monitor, connection


def test_a_client_that_reads_nothing_stalls_after_the_timeout():
    assert stalled_each_second(*monitor_after(100), [100] * 6) == [False] * 3 + [True] * 3


def test_a_client_that_reads_a_byte_in_time_does_not_stall():
    assert not any(stalled_each_second(*monitor_after(100), [100, 100, 99, 99, 98, 98, 97, 97, 96]))


def test_a_client_without_unread_bytes_does_not_stall():
    assert not any(stalled_each_second(*monitor_after(100), [0] * 20))


def test_more_unread_bytes_do_not_count_as_reading():
    assert stalled_each_second(*monitor_after(100), [100, 106, 112, 112, 118]) == [False] * 3 + [True] * 2


def test_without_a_timeout_no_client_stalls():
    assert not any(stalled_each_second(*monitor_after(100, 0), [100] * 50))


def test_the_kernels_timeout_is_off_while_a_monitor_runs():
    monitor, connection = monitor_after(0)
    with monitor.watching():
        assert connection.kernel_timeouts == [False]
    assert connection.kernel_timeouts == [False, True]
