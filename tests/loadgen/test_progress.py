"""How far a run is: one line on a terminal, one word elsewhere."""

import asyncio
import io

from app.loadgen import progress
from app.loadgen.progress import CLEAR, Progress
from tests.api.serving import until
from tests.loadgen.made import made_answer, made_run


class FakeTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_what_there_is_is_told():
    answers = [*[made_answer()] * 3, made_answer(status="open"), made_answer(status="failed")]
    found = Progress(io.StringIO(), "rate 4", made_run(*answers, num_open=1), 1200).line()
    assert found.startswith("rate 4: 5 of 1,200 sent, 1 open, 3 completed, 1 failed; ")
    assert Progress(io.StringIO(), "rate inf", made_run(), None).line().startswith("rate inf: 0 sent, 0 open; ")


async def test_a_terminal_shows_a_line_that_is_rewritten_and_gone_at_the_end(monkeypatch):
    monkeypatch.setattr(progress, "EVERY_S", 0.001)
    monkeypatch.setenv("COLUMNS", "21")
    terminal = FakeTerminal()
    async with Progress(terminal, "rate 4", made_run(made_answer()), 2):
        await until(lambda: terminal.getvalue().count(CLEAR) >= 3)
    lines = terminal.getvalue().split(CLEAR)
    assert lines[0] == lines[-1] == ""
    assert set(lines[1:-1]) == {"rate 4: 1 of 2 sent,"}, "no wider than the terminal"


async def test_elsewhere_it_is_one_line_per_run():
    file = io.StringIO()
    async with Progress(file, "rate 4", made_run(made_answer()), 2):
        await asyncio.sleep(0)
    assert file.getvalue() == "rate 4\n"
