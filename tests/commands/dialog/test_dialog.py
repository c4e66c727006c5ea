"""The terminal chat: messages sent, text shown, interrupts and failures."""

import sys

import pytest

from app.commands.dialog.conversation import Conversation
from app.commands.dialog.dialog import Dialog
from app.commands.dialog.screens import RawScreen
from app.contract.errors import ContextLengthExceeded, EngineFailed
from app.contract.events import REPETITION
from tests.commands.dialog.scripted_model import ScriptedModel, ended


def talk(model: ScriptedModel, *texts: str, system: str = "", is_interactive: bool = True) -> Dialog:
    """Handle texts, and return the dialog."""
    dialog = Dialog(model, lambda: RawScreen(sys.stdout), Conversation(system), is_interactive=is_interactive)
    dialog.run(iter(texts))
    return dialog


def roles(messages):
    """Roles and contents, as pairs."""
    return [(message["role"], message["content"]) for message in messages]


def test_each_request_contains_the_conversation_so_far(capsys):
    model = ScriptedModel(["Hel", "lo"], ["Bye"])
    talk(model, "Hi", "And now?", system="Be brief.")
    assert roles(model.requests[1]) == [
        ("system", "Be brief."), ("user", "Hi"), ("assistant", "Hello"), ("user", "And now?"),
    ]  # fmt: skip
    assert capsys.readouterr().out == "Hello\nBye\n"


def test_empty_lines_are_not_sent():
    model = ScriptedModel()
    talk(model, "", "")
    assert model.requests == []


def test_two_slashes_send_a_text_with_one():
    model = ScriptedModel(["a folder"])
    talk(model, "//etc is what?")
    assert roles(model.requests[0]) == [("user", "/etc is what?")]


def test_an_interrupt_ends_the_answer_and_keeps_its_text(capsys):
    model = ScriptedModel(["so far", KeyboardInterrupt()], ["next"])
    talk(model, "a", "b")
    assert roles(model.requests[1]) == [("user", "a"), ("assistant", "so far"), ("user", "b")]
    assert "so far\n(stopped)\n" in capsys.readouterr().out


def test_an_interrupt_before_the_first_text_leaves_the_conversation_as_it_was():
    model = ScriptedModel([KeyboardInterrupt()], ["next"])
    talk(model, "a", "b")
    assert roles(model.requests[1]) == [("user", "b")]


def test_an_answer_that_fails_at_once_does_not_change_the_conversation(capsys):
    model = ScriptedModel([EngineFailed("It broke.\x1b[2J")], ["fine"])
    talk(model, "a", "b")
    assert roles(model.requests[1]) == [("user", "b")]
    assert capsys.readouterr().err == "quire: error: It broke.\\x1b[2J\n"


def test_what_arrived_before_a_failure_is_kept_and_can_be_continued(capsys):
    model = ScriptedModel(["one ", EngineFailed("It broke.")], ["two"], ["three"])
    dialog = talk(model, "a", "/continue", "b")
    assert roles(model.requests[1]) == [("user", "a"), ("assistant", "one ")]
    assert roles(model.requests[2]) == [("user", "a"), ("assistant", "one two"), ("user", "b")]
    assert dialog.conversation.last_answer == "three"
    assert capsys.readouterr().out == "one \ntwo\nthree\n"


def test_a_conversation_that_fills_the_context_is_told_what_helps(capsys):
    full = ContextLengthExceeded("This model's maximum context length is 300 tokens.")
    refused = EngineFailed("The prompt has 302 tokens. (context_length_exceeded)")
    talk(ScriptedModel([full], ["Hello"], [full], [refused]), "A book", "Hi", "And?", "And?")
    first, *later = capsys.readouterr().err.splitlines()
    assert "/clear" not in first, "one question is too long, and a new conversation does not help"
    assert len(later) == 2 and all(line.endswith("; /clear begins a new conversation") for line in later)


def test_without_a_terminal_a_failed_answer_is_raised():
    with pytest.raises(EngineFailed):
        talk(ScriptedModel([EngineFailed("It broke.")], ["fine"]), "a", "b", is_interactive=False)


def test_internal_errors_are_raised():
    with pytest.raises(ZeroDivisionError):
        talk(ScriptedModel([ZeroDivisionError()]), "a")


def test_an_answer_that_was_cut_says_how_to_go_on(capsys):
    model = ScriptedModel(
        ["cut", ended("length")], ["circle", ended("length", REPETITION)], ["whole", ended("stop", "x")]
    )
    talk(model, "a", "b", "c")
    assert capsys.readouterr().out == (
        "cut\n(the answer has reached its limit of tokens; /continue goes on)\n"
        "circle\n(the answer repeated itself and was ended; /continue goes on)\nwhole\n"
    )


def test_bytes_that_are_no_text_are_not_sent(capsys):
    model = ScriptedModel()
    talk(model, "caf\udce9")
    assert model.requests == [] and "not UTF-8" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("pieces", "says"),
    [
        (
            ["\n", ended("length")],
            "(the limit of tokens was reached before the answer began; --max-tokens sets a higher one)",
        ),
        ([KeyboardInterrupt()], "(stopped)"),
        ([ended("stop")], "(the model ended without a text)"),
    ],
)
def test_a_question_without_an_answer_leaves_the_one_before_as_it_was(capsys, pieces, says):
    model = ScriptedModel(["one"], pieces, ["two"], [" more"])
    dialog = talk(model, "a", "b", "/continue", "c", "/continue")
    out = capsys.readouterr().out
    assert f"{says}\n(the last question has no answer to continue; ask it again)\n" in out
    assert roles(model.requests[2]) == [("user", "a"), ("assistant", "one"), ("user", "c")]
    assert dialog.conversation.last_answer == "two more"
