"""The line of a download: bytes, rate and time left."""

import io

import pytest

from app.observe.console import Console
from app.observe.download_progress import DownloadProgress, progress_text, size_text
from tests.fakes import FakeClock
from tests.observe.terminals import Terminal


@pytest.mark.parametrize(("num_bytes", "text"), [
    (0, "0.0 kB"), (999, "1.0 kB"), (92_871_040, "93 MB"), (9_940_000, "9.9 MB"), (9_960_000, "10 MB"),
    (999_400_000, "999 MB"), (999_600_000, "1.0 GB"), (4_920_000_000, "4.9 GB"), (5 * 10**15, "5000 TB"),
])  # fmt: skip
def test_sizes_are_decimal(num_bytes: int, text: str):
    assert size_text(num_bytes) == text


def test_the_text_has_rate_and_time_left_when_they_are_known():
    assert progress_text(10**9, 4 * 10**9, 0) == "1.0 GB of 4.0 GB (25%)"
    assert progress_text(10**9, 4 * 10**9, 40e6) == "1.0 GB of 4.0 GB (25%), 40 MB/s, 1:15 left"
    assert progress_text(0, 4 * 10**9, 1e6).endswith("1:06:40 left")


def test_on_a_terminal_one_line_moves_and_ends():
    stream, clock = Terminal(), FakeClock()
    progress = DownloadProgress(Console(stream, environ={}, clock=clock), "Downloading x", 100 * 10**6, clock=clock)
    for done in (20, 30, 40):  # 20 MB were there before
        progress.show(done * 10**6)
        clock.advance(1.0)
    progress.end()
    lines = stream.getvalue().split("\r")
    assert lines[1].startswith("Downloading x: 20 MB of 100 MB (20%)\x1b")
    assert lines[3].startswith("Downloading x: 40 MB of 100 MB (40%), 10 MB/s, 0:06 left")
    assert lines[-1] == "\x1b[K"


def test_the_rate_is_that_of_the_last_seconds_and_survives_a_restart():
    stream, clock = Terminal(), FakeClock()
    progress = DownloadProgress(Console(stream, environ={}, clock=clock), "x", 10**9, clock=clock)
    for second in range(60):
        progress.show(second * 10**6 if second < 30 else 30 * 10**6 + (second - 30) * 2 * 10**6)
        clock.advance(1.0)
    assert "2.0 MB/s" in stream.getvalue().split("\r")[-1]
    progress.show(0)
    assert stream.getvalue().split("\r")[-1] == "x: 0.0 kB of 1.0 GB (0%)\x1b[K"


def test_in_a_log_there_are_few_lines():
    stream, clock = io.StringIO(), FakeClock()
    progress = DownloadProgress(Console(stream, environ={}, clock=clock), "x", 10**9, clock=clock)
    for _ in range(6000):
        progress.show(0)
        clock.advance(0.1)
    assert 5 <= len(stream.getvalue().splitlines()) <= 12
