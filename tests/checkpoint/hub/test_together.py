"""Downloads of several files at the same time."""

from __future__ import annotations

from threading import Barrier, Event, Semaphore

import pytest

from app.checkpoint.hub.download import Watch
from app.checkpoint.hub.together import MAX_TOGETHER, download_together
from app.contract.errors import Unreachable

HANG_S = 60.0


def test_downloads_run_at_the_same_time_and_add_up():
    barrier, shown = Barrier(MAX_TOGETHER), []

    def download(watch: Watch) -> None:
        barrier.wait(HANG_S)  # breaks unless all are here
        watch(5)

    download_together([download] * MAX_TOGETHER, [3] * MAX_TOGETHER, shown.append)
    assert shown[-1] == 5 * MAX_TOGETHER


def test_no_more_than_the_limit_run_at_once():
    places, all_began = Semaphore(MAX_TOGETHER), []

    def download(watch: Watch) -> None:
        assert places.acquire(blocking=False)
        all_began.append(1)
        watch(1)
        places.release()

    download_together([download] * 20, [0] * 20, lambda num_bytes: None)
    assert len(all_began) == 20


def test_the_error_of_one_ends_the_others_where_they_report_bytes():
    began, was_ended = Event(), Event()

    def endless(watch: Watch) -> None:
        try:
            while True:
                watch(1)
                began.set()
        finally:
            was_ended.set()

    def fails(watch: Watch) -> None:
        assert began.wait(HANG_S)
        raise Unreachable("b cannot be downloaded: HTTP 404 Not Found.")

    never: list[int] = []
    later = [lambda watch: never.append(1)] * 5
    with pytest.raises(Unreachable, match="b cannot be downloaded"):
        download_together([*[endless] * (MAX_TOGETHER - 1), fails, *later], [0] * 10, lambda num_bytes: None)
    assert was_ended.wait(HANG_S)
    assert not never


def test_an_interrupt_ends_all():
    was_ended = Event()

    def endless(watch: Watch) -> None:
        try:
            while True:
                watch(1)
        finally:
            was_ended.set()

    def show(num_bytes: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        download_together([endless], [0], show)
    assert was_ended.wait(HANG_S)
