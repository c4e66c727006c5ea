"""What is recorded is what commands write, as it comes."""

import asyncio
import os

from tools.recording import Terminal
from tools.recording_picture import Piece


async def test_a_terminal_has_what_is_typed_and_written(tmp_path):
    pieces: list[Piece] = []
    terminal = Terminal("a", pieces, tmp_path, os.environ)
    await terminal.run("echo one; echo two >&2")
    await terminal.run("pwd; exit 3")
    assert terminal.text == f"one\ntwo\n{tmp_path}\n"
    assert terminal.process.returncode == 3
    assert [piece.text for piece in pieces if piece.is_typed] == ["$ echo one; echo two >&2\n", "$ pwd; exit 3\n"]
    assert "".join(piece.text for piece in pieces if not piece.is_typed) == terminal.text
    times = [piece.time_s for piece in pieces]
    assert times == sorted(times) and {piece.terminal for piece in pieces} == {"a"}


async def test_a_character_whose_bytes_come_apart_is_one_character(tmp_path):
    os.mkfifo(tmp_path / "rest")
    terminal = Terminal("a", [], tmp_path, os.environ)
    async with asyncio.TaskGroup() as group:
        group.create_task(terminal.run("printf 'a\\303'; cat rest"))
        await terminal.until(lambda text: text == "a")
        await asyncio.to_thread((tmp_path / "rest").write_bytes, b"\xa4b")
    assert terminal.text == "a\N{LATIN SMALL LETTER A WITH DIAERESIS}b"
