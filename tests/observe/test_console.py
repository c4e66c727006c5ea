"""What people read while a server starts and ends: one line moves on a terminal, few lines go to a file."""

import io
import os

import pytest

from app.observe.console import FIRST_PAUSE_S, Console
from tests.fakes import FakeClock


class Terminal(io.StringIO):
    """A stream that a person watches."""

    def isatty(self) -> bool:
        """It is one."""
        return True


def test_on_a_terminal_one_line_moves_and_gives_way_to_what_stays():
    stream = Terminal()
    console = Console(stream, environ={})
    for share in ("0%", "0%", "50%"):
        console.show_status(f"Loading: {share}")
    console.print_line("Ready")
    assert stream.getvalue() == "\rLoading: 0%\x1b[K\rLoading: 50%\x1b[K\r\x1b[KReady\n"


def test_the_moving_line_is_shown_again_after_it_had_to_give_way():
    stream = Terminal()
    console = Console(stream, environ={})
    console.show_status("Loading")
    console.clear_status()
    console.clear_status()
    console.show_status("Loading")
    assert stream.getvalue() == "\rLoading\x1b[K\r\x1b[K\rLoading\x1b[K"


@pytest.mark.parametrize(("stream", "environ"), [(io.StringIO(), {}), (Terminal(), {"TERM": "dumb"})])
def test_an_hour_of_loading_leaves_few_lines_where_nothing_can_move(stream, environ):
    clock = FakeClock()
    console = Console(stream, environ=environ, clock=clock)
    for _ in range(36_000):
        console.show_status("Loading the model: 0%")
        clock.advance(0.1)
    lines = stream.getvalue().splitlines()
    assert 5 <= len(lines) <= 12 and set(lines) == {"Loading the model: 0%"}


def test_a_short_load_is_not_commented_on_where_nothing_can_move():
    stream, clock = io.StringIO(), FakeClock()
    console = Console(stream, clock=clock)
    console.show_status("Loading")
    clock.advance(FIRST_PAUSE_S - 0.1)
    console.show_status("Loading")
    console.print_line("Ready")
    clock.advance(FIRST_PAUSE_S)
    console.show_status("Finishing")
    assert stream.getvalue() == "Ready\n", "each beginning has its own pause"


def test_a_quiet_one_says_nothing():
    stream = Terminal()
    console = Console(stream, is_quiet=True)
    console.show_status("Loading")
    console.print_line("Ready")
    console.clear_status()
    assert stream.getvalue() == ""


def test_without_a_reader_lines_are_lost_and_nothing_else_happens():
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as stream:
        console = Console(stream)
        console.print_line("nobody reads this")
        console.print_line("nor this")
