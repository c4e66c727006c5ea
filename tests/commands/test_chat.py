"""The terminal chat: what is sent, what is shown, and what an interrupt leaves."""

import io

import pytest

from app.cli import main
from app.commands.chat import converse
from app.contract.errors import EngineFailed


class Talker:
    """Answers with scripted pieces and remembers what it was asked."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.asked: list[list[dict[str, str]]] = []

    def __call__(self, messages):
        self.asked.append(messages)
        for piece in self.answers.pop(0):
            if isinstance(piece, BaseException):
                raise piece
            yield piece


def roles(messages):
    """Who said what, as pairs."""
    return [(message["role"], message["content"]) for message in messages]


def test_each_question_sees_the_conversation_so_far(capsys):
    talker = Talker(["Hel", "lo"], ["Bye"])
    converse(talker, iter(["Hi", "And now?"]), system="Be brief.")
    assert roles(talker.asked[1]) == [
        ("system", "Be brief."),
        ("user", "Hi"),
        ("assistant", "Hello"),
        ("user", "And now?"),
    ]
    assert capsys.readouterr().out == "Hello\nBye\n"


def test_new_forgets_all_but_the_system_message():
    talker = Talker(["one"], ["two"])
    converse(talker, iter(["a", "/new", "b"]), system="s")
    assert roles(talker.asked[1]) == [("system", "s"), ("user", "b")]


def test_quit_ends_it():
    talker = Talker()
    converse(talker, iter(["/quit", "never asked"]))
    assert talker.asked == []


def test_empty_lines_and_unknown_commands_are_not_sent(capsys):
    talker = Talker()
    converse(talker, iter(["", "/help me"]))
    assert talker.asked == []
    assert "/help" in capsys.readouterr().out


def test_an_interrupt_ends_the_answer_and_keeps_what_was_said(capsys):
    talker = Talker(["so far", KeyboardInterrupt()], ["next"])
    converse(talker, iter(["a", "b"]))
    assert roles(talker.asked[1]) == [("user", "a"), ("assistant", "so far"), ("user", "b")]
    assert "(stopped)" in capsys.readouterr().out


def test_a_failed_answer_leaves_the_conversation_as_it_was(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    talker = Talker([EngineFailed("It broke.")], ["fine"])
    converse(talker, iter(["a", "b"]))
    assert roles(talker.asked[1]) == [("user", "b")]
    assert capsys.readouterr().err == "quire: error: It broke.\n"


def test_a_failed_answer_to_a_script_is_the_end():
    with pytest.raises(EngineFailed):
        converse(Talker([EngineFailed("It broke.")], ["fine"]), iter(["a", "b"]))


def test_a_conversation_with_the_embedded_model_needs_no_server(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("What is Quire?\n"))
    assert main(["chat", "--temperature", "0"]) == 0
    assert "Quire" in capsys.readouterr().out


def test_our_own_bugs_are_not_hidden():
    with pytest.raises(ZeroDivisionError):
        converse(Talker([ZeroDivisionError()]), iter(["a"]))
