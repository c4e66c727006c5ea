"""The commands of the chat: what each shows and changes."""

import re

import pytest

from app.commands.dialog.slash_commands import COMMANDS
from app.contract.errors import EngineFailed
from tests.commands.dialog.scripted_model import ScriptedModel, ended
from tests.commands.dialog.test_dialog import roles, talk
from tests.house.source import ROOT


def test_help_lists_every_command_and_how_to_type(capsys):
    talk(ScriptedModel(), "/help")
    out = " ".join(capsys.readouterr().out.split())
    assert all(name in out and command.summary in out for name, command in COMMANDS.items())
    assert '"""' in out and "In a terminal Ctrl-C" in out


@pytest.mark.parametrize("columns", [40, 80])
def test_summaries_of_help_wrap_beside_the_names(capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    talk(ScriptedModel(), "/help")
    listed = capsys.readouterr().out.split("\n\n")[0].splitlines()
    starts = {re.match(r"(/\w+(?: \S+)?)? +", line).end() for line in listed}
    assert starts == {len("/system [TEXT]  ")} and max(map(len, listed)) < columns and len(listed) > len(COMMANDS)


def test_help_says_where_words_without_a_slash_end_the_chat(capsys):
    """In a pipe they are questions."""
    talk(ScriptedModel(), "/help", is_interactive=False)
    assert "in a terminal the word quit or exit alone does, too" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("/hlep", "(unknown command /hlep; did you mean '/help'; /help lists all"),
        ("/usr/bin/env is what?", "(unknown command /usr/bin/env; /help lists all, //text sends a text with a slash)"),
        ("/", "(unknown command /"),
        ("/stats now", "(/stats takes nothing after it)"),
        ("/continue", "(there is no answer to continue yet)"),
    ],
)
def test_what_is_no_command_is_said_and_not_sent(capsys, line, says):
    model = ScriptedModel()
    talk(model, line)
    assert model.requests == [] and says in capsys.readouterr().out


@pytest.mark.parametrize("line", ["/clear", "/new"])
def test_clear_removes_all_but_the_system_message(capsys, line):
    model = ScriptedModel(["one"], ["two"])
    talk(model, "a", line, "b", system="s")
    assert roles(model.requests[1]) == [("system", "s"), ("user", "b")]
    assert "(new conversation)" in capsys.readouterr().out


@pytest.mark.parametrize("line", ["/quit", "/exit", "quit", "exit", "Exit", ":q"])
def test_quit_ends_the_chat(line):
    model = ScriptedModel()
    assert talk(model, line, "never sent").is_over and model.requests == []


def test_in_a_pipe_quit_is_a_question():
    model = ScriptedModel(["one"])
    assert not talk(model, "quit", is_interactive=False).is_over and len(model.requests) == 1


def test_the_system_message_is_shown_set_and_removed(capsys):
    model = ScriptedModel(["one"], ["two"])
    talk(model, "/system", "/system Be brief.", "a", "/system", '/system ""', "b")
    assert [request[0]["role"] for request in model.requests] == ["system", "user"]
    out = capsys.readouterr().out
    assert "there is no system message" in out and "the system message is: Be brief." in out and "removed" in out


@pytest.mark.parametrize("name", ["talk.md", "talk.json"])
def test_a_conversation_is_saved_and_loaded(capsys, tmp_path, name):
    file = tmp_path / name
    model = ScriptedModel(["one"], ["two"])
    talk(model, "a", f"/save {file}", "/save", system="s")
    talk(model, f"/load {file}", "b")
    assert roles(model.requests[1])[-3:] == [("user", "a"), ("assistant", "one"), ("user", "b")]
    out = capsys.readouterr().out
    assert f"(saved in {file}" in out and f"(loaded from {file}: 1 question with answers)\n> a\none\n" in out
    assert ("without the system message" in out) == (name == "talk.md")


def test_a_conversation_is_not_saved_over_another_file(capsys, tmp_path):
    file = tmp_path / "talk.md"
    file.write_text("mine")
    talk(ScriptedModel(["one"]), "a", f"/save {file}", "/save", "/load", f"/load {tmp_path}/none.md")
    err = capsys.readouterr().err
    assert file.read_text() == "mine"
    assert "exists" in err and "/save needs a file" in err and "/load needs a file" in err and "No such file" in err


def test_a_conversation_is_not_saved_over_the_file_that_it_was_loaded_from(capsys, tmp_path):
    """That may have other conversations, too, and branches."""
    file = tmp_path / "talk.json"
    talk(ScriptedModel(["one"]), "a", f"/save {file}")
    before = file.read_bytes()
    talk(ScriptedModel(["two"]), f"/load {file}", "b", "/save")
    assert file.read_bytes() == before and "/save needs a file" in capsys.readouterr().err


def test_a_system_message_that_is_no_unicode_is_told(capsys):
    dialog = talk(ScriptedModel(["one"]), "a", "/system caf\udce9")
    assert dialog.conversation.system == "" and "UTF-8" in capsys.readouterr().err


def test_a_file_that_cannot_be_loaded_loses_no_conversation(tmp_path):
    (tmp_path / "bad.json").write_text("{")
    dialog = talk(ScriptedModel(["one"]), "a", f"/load {tmp_path}/bad.json")
    assert dialog.conversation.last_answer == "one"


def test_models_are_listed_and_changed(capsys):
    dialog = talk(ScriptedModel(["one"]), "a", "/model", "/model nope", "/model other")
    output = capsys.readouterr()
    assert "* scripted, context 100 tokens\n  other\\x1b[2J\n" in output.out
    assert "(other answers from now on)" in output.out and "no model nope" in output.err
    assert dialog.conversation.last_answer == "one"


def test_stats_has_tokens_speed_and_context(capsys):
    talk(ScriptedModel(["one", "two", ended("stop", None, 20, 5)]), "/stats", "a", "/stats")
    out = capsys.readouterr().out
    assert "model      scripted, context 100 tokens" in out
    assert "turns      1, 5 tokens generated in this chat" in out
    assert "last       5 tokens in " in out and "speed      the first after " in out and " a second" in out
    assert "context    25 tokens used of 100 (25%)" in out


@pytest.mark.parametrize("line", ["/clear", "/load {}"])
def test_stats_of_another_conversation_have_nothing_of_the_one_before(capsys, tmp_path, line):
    file = tmp_path / "talk.md"
    talk(ScriptedModel(["one", ended("stop", None, 20, 5)]), "a", f"/save {file}", line.format(file), "/stats")
    out = capsys.readouterr().out
    assert " 0 tokens generated in this chat" in out and "last " not in out and "speed " not in out


def test_stats_of_another_model_have_no_figures_of_the_one_before(capsys):
    talk(ScriptedModel(["one", ended("stop", None, 20, 5)]), "a", "/model other", "/stats")
    out = capsys.readouterr().out
    assert "turns      1, 5 tokens" in out and "last " not in out


def test_stats_without_counts_of_the_server_say_so(capsys):
    talk(ScriptedModel(["one", "two"]), "a", "/stats")
    out = capsys.readouterr().out
    assert "last       about 2 tokens in " in out and ": the server counts no tokens\n" in out
    assert "turns      1, about 2 tokens generated in this chat" in out


def test_stats_of_a_stopped_answer_say_that_its_tokens_are_estimated(capsys):
    talk(ScriptedModel(["one", "two", KeyboardInterrupt()]), "a", "/stats")
    assert ": it was not ended, so its tokens are not counted\n" in capsys.readouterr().out


def test_a_question_that_failed_before_its_answer_changes_no_figures(capsys):
    talk(ScriptedModel(["one", ended("stop", None, 20, 5)], [EngineFailed("It broke.")]), "a", "b", "/stats")
    out = capsys.readouterr().out
    assert "turns      1, 5 tokens generated in this chat" in out and "last       5 tokens in " in out


def test_the_page_about_the_terminal_has_every_command_and_no_other():
    page = (ROOT / "docs/terminal.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(/\w+)(?: ([^`]+))?` \|", page, re.MULTILINE)
    assert dict(rows) == {name: command.argument for name, command in COMMANDS.items()}
