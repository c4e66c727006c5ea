"""The console while a server starts and ends: a status line on a terminal, few lines in a file."""

import io
import os

import pytest

from app.observe.console import FIRST_PAUSE_S, Console
from tests.fakes import FakeClock
from tests.observe.terminals import Terminal


def test_on_a_terminal_the_status_line_is_rewritten_and_cleared_for_lines():
    stream = Terminal()
    console = Console(stream, environ={})
    for share in ("0%", "0%", "50%"):
        console.show_status(f"Loading: {share}")
    console.print_line("Ready")
    assert stream.getvalue() == "\rLoading: 0%\x1b[K\rLoading: 50%\x1b[K\r\x1b[KReady\n"


def test_the_status_line_is_shown_again_after_it_was_cleared():
    stream = Terminal()
    console = Console(stream, environ={})
    console.show_status("Loading")
    console.clear_status()
    console.clear_status()
    console.show_status("Loading")
    assert stream.getvalue() == "\rLoading\x1b[K\r\x1b[K\rLoading\x1b[K"


@pytest.mark.parametrize(("stream", "environ"), [(io.StringIO(), {}), (Terminal(), {"TERM": "dumb"})])
def test_without_a_terminal_an_hour_of_loading_prints_few_lines(stream, environ):
    clock = FakeClock()
    console = Console(stream, environ=environ, clock=clock)
    for _ in range(36_000):
        console.show_status("Loading the model: 0%")
        clock.advance(0.1)
    lines = stream.getvalue().splitlines()
    assert 5 <= len(lines) <= 12 and set(lines) == {"Loading the model: 0%"}


def test_without_a_terminal_a_short_load_prints_no_status():
    stream, clock = io.StringIO(), FakeClock()
    console = Console(stream, clock=clock)
    console.show_status("Loading")
    clock.advance(FIRST_PAUSE_S - 0.1)
    console.show_status("Loading")
    console.print_line("Ready")
    clock.advance(FIRST_PAUSE_S)
    console.show_status("Finishing")
    assert stream.getvalue() == "Ready\n", "each status has its own first pause"


def test_a_quiet_console_prints_nothing():
    stream = Terminal()
    console = Console(stream, is_quiet=True)
    console.show_status("Loading")
    console.print_line("Ready")
    console.clear_status()
    assert stream.getvalue() == ""


def test_without_a_reader_lines_are_dropped():
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as stream:
        console = Console(stream)
        console.print_line("first line")
        console.print_line("second line")
