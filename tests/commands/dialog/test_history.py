"""The history of lines: private, bounded, and not needed."""

import builtins
import readline
import stat

import pytest

from app.commands.dialog.history import MAX_LINES, History


@pytest.fixture(autouse=True)
def no_lines():
    """An empty history of this process."""
    readline.clear_history()
    yield
    readline.clear_history()


@pytest.fixture
def type_line(monkeypatch):
    """A function that types a line."""

    def type_(history: History, line: str) -> None:
        monkeypatch.setattr(builtins, "input", lambda prompt: line)
        assert history.read("> ") == line
        readline.add_history(line)  # as `input` does on a terminal

    return type_


def test_lines_come_back_and_only_their_owner_can_read_them(tmp_path, type_line):
    history = History(tmp_path / "quire")
    for line in ("one", "one", "", "two\nlines"):
        type_line(history, line)
    history.save()
    file = tmp_path / "quire" / "chat_history"
    assert file.read_text() == "one\ntwo lines\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    readline.clear_history()
    History(tmp_path / "quire")
    assert readline.get_history_item(1) == "one" and readline.get_current_history_length() == 2


def test_a_file_that_others_can_read_is_closed_to_them(tmp_path):
    file = tmp_path / "chat_history"
    file.write_text("old\n")
    file.chmod(0o644)
    History(tmp_path).save()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_the_lines_of_two_chats_at_once_are_kept(tmp_path, type_line):
    """Each chat has the lines that were there before, and its own."""
    (tmp_path / "chat_history").write_text("before\n")
    first = History(tmp_path)
    type_line(first, "first")
    other = tmp_path / "chat_history"
    other.write_text("before\nother\n")  # another process has ended
    first.save()
    assert other.read_text() == "before\nother\nfirst\n"
    type_line(first, "second")
    first.save()
    assert other.read_text() == "before\nother\nfirst\nsecond\n"


def test_the_newest_lines_are_kept(tmp_path, type_line):
    history = History(tmp_path)
    for number in range(MAX_LINES + 10):
        type_line(history, str(number))
    history.save()
    lines = (tmp_path / "chat_history").read_text().splitlines()
    assert (len(lines), lines[-1]) == (MAX_LINES, str(MAX_LINES + 9))


def test_lines_are_kept_although_readline_forgets_them(tmp_path, type_line):
    history = History(tmp_path)
    for line in ("one", "two", "three"):
        type_line(history, line)
        readline.remove_history_item(0)  # as `set history-size 0` in ~/.inputrc does
    history.save()
    assert (tmp_path / "chat_history").read_text() == "one\ntwo\nthree\n"


def test_a_folder_that_cannot_be_written_keeps_none(tmp_path, type_line):
    (tmp_path / "file").touch()
    history = History(tmp_path / "file")
    type_line(history, "one")
    history.save()


def test_a_damaged_file_is_no_history(tmp_path):
    (tmp_path / "chat_history").write_bytes(b"\xff\xfe")
    History(tmp_path)
    assert readline.get_current_history_length() == 0


def test_without_readline_lines_can_be_typed(tmp_path, monkeypatch):
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr("app.commands.dialog.history.import_module", missing)
    history = History(tmp_path)
    history.save()
    assert history.typed() == "" and not list(tmp_path.iterdir())
