"""The terminal chat: messages sent, text shown, and interrupts."""

import io

import pytest

from app.cli import main
from app.commands.chat import converse
from app.contract.errors import EngineFailed


class ScriptedModel:
    """Answers with scripted pieces and keeps the messages of each request."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.requests: list[list[dict[str, str]]] = []

    def __call__(self, messages):
        self.requests.append(messages)
        for piece in self.answers.pop(0):
            if isinstance(piece, BaseException):
                raise piece
            yield piece


def roles(messages):
    """Roles and contents, as pairs."""
    return [(message["role"], message["content"]) for message in messages]


def test_each_request_contains_the_conversation_so_far(capsys):
    model = ScriptedModel(["Hel", "lo"], ["Bye"])
    converse(model, iter(["Hi", "And now?"]), system="Be brief.")
    assert roles(model.requests[1]) == [
        ("system", "Be brief."),
        ("user", "Hi"),
        ("assistant", "Hello"),
        ("user", "And now?"),
    ]
    assert capsys.readouterr().out == "Hello\nBye\n"


def test_new_removes_all_but_the_system_message():
    model = ScriptedModel(["one"], ["two"])
    converse(model, iter(["a", "/new", "b"]), system="s")
    assert roles(model.requests[1]) == [("system", "s"), ("user", "b")]


def test_continue_sends_the_conversation_with_the_answer_and_makes_it_longer(capsys):
    model = ScriptedModel(["one, "], ["two"], ["fine"])
    converse(model, iter(["/continue", "a", "/continue", "b"]))
    assert roles(model.requests[1]) == [("user", "a"), ("assistant", "one, ")]
    assert roles(model.requests[2]) == [("user", "a"), ("assistant", "one, two"), ("user", "b")]
    assert capsys.readouterr().out == "(there is no answer to continue)\none, \ntwo\nfine\n"


def test_a_continuation_that_fails_leaves_the_answer_as_it_was(monkeypatch):
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    model = ScriptedModel(["one"], [EngineFailed("It broke.")], ["fine"])
    converse(model, iter(["a", "/continue", "b"]))
    assert roles(model.requests[2]) == [("user", "a"), ("assistant", "one"), ("user", "b")]


def test_quit_ends_the_chat():
    model = ScriptedModel()
    converse(model, iter(["/quit", "never sent"]))
    assert model.requests == []


def test_empty_lines_and_unknown_commands_are_not_sent(capsys):
    model = ScriptedModel()
    converse(model, iter(["", "/help me"]))
    assert model.requests == []
    assert "/help" in capsys.readouterr().out


def test_an_interrupt_ends_the_answer_and_keeps_its_text(capsys):
    model = ScriptedModel(["so far", KeyboardInterrupt()], ["next"])
    converse(model, iter(["a", "b"]))
    assert roles(model.requests[1]) == [("user", "a"), ("assistant", "so far"), ("user", "b")]
    assert "(stopped)" in capsys.readouterr().out


def test_a_failed_answer_does_not_change_the_conversation(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    model = ScriptedModel([EngineFailed("It broke.")], ["fine"])
    converse(model, iter(["a", "b"]))
    assert roles(model.requests[1]) == [("user", "b")]
    assert capsys.readouterr().err == "quire: error: It broke.\n"


def test_without_a_terminal_a_failed_answer_is_raised():
    with pytest.raises(EngineFailed):
        converse(ScriptedModel([EngineFailed("It broke.")], ["fine"]), iter(["a", "b"]))


def test_a_conversation_with_the_embedded_model_needs_no_server(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("What is Quire?\n"))
    assert main(["chat", "--temperature", "0"]) == 0
    assert "Quire" in capsys.readouterr().out


def test_internal_errors_are_raised():
    with pytest.raises(ZeroDivisionError):
        converse(ScriptedModel([ZeroDivisionError()]), iter(["a"]))
