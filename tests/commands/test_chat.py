"""`quire chat` as a user has it: on a pseudo terminal, and with pipes."""

import io
import json
import re
import stat

import pytest

from app.cli import EXIT_CANNOT_START, main
from tests.commands.answers.foreign_server import JSON, Said, foreign_server
from tests.commands.dialog.emulator import Emulator
from tests.commands.dialog.typist import CTRL_C, UP, typing
from tests.server.quick_start import serving

BRACKETED_PASTE = re.compile(r"\x1b\[\?2004[hl]")  # readline's own
# The end token is in the prompt, so that the one penalty prevents it; the other repeats a word for ever.
ENDLESS = (
    "--temperature", "0", "--repetition-penalty", "10", "--frequency-penalty", "-2", "--no-repetition-stop",
    "--max-tokens", "1500",
)  # fmt: skip


@pytest.fixture(autouse=True)
def own_state(tmp_path, monkeypatch):
    """A state folder of the test's own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture(scope="module")
def server():
    """A server for what is the same wherever the model is: a chat with it starts in a quarter of the time."""
    with serving() as running:
        running.wait_until_ready()
        yield running


def test_a_conversation_with_the_embedded_model_needs_no_server(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("What is Quire?\n"))
    assert main(["chat", "--temperature", "0"]) == 0
    assert "Quire" in capsys.readouterr().out


@pytest.mark.parametrize("status", [429, 503])
def test_in_a_pipe_a_server_that_has_no_time_yet_is_to_be_tried_again(status, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("What is Quire?\n"))
    with foreign_server() as loading:
        loading.listing = loading.answer = Said('{"error": {"message": "Not yet."}}', status, JSON)
        assert main(["chat", "--url", loading.url]) == EXIT_CANNOT_START
    assert "Not yet." in capsys.readouterr().err


def seen_at(columns: int, url: str) -> list[str]:
    """The lines of an answer on a terminal of so many columns."""
    with typing("chat", "--url", url, "--temperature", "0", columns=columns) as user:
        user.wait_for("guide, context 2,048 tokens")
        user.wait_for("answers in English.")
        user.wait_for("> ")
        user.type("What is Quire?\n")
        user.wait_for("chat server")
        user.wait_for("> ")
        user.type("/stats\n")
        user.wait_for("tokens used of 2,048")
        assert user.leave() == 0
        emulator = Emulator(columns)
        emulator.feed(BRACKETED_PASTE.sub("", user.seen[user.seen.index("guide, context") :]))
    return emulator.shown.split("What is Quire?\n")[1].split("\n> ")[0].splitlines()


def test_an_answer_wraps_between_words(server):
    narrow, wide = seen_at(50, server.url), seen_at(2000, server.url)
    assert len(wide) < len(narrow) > 3
    assert " ".join(narrow) == " ".join(wide)


def test_an_answer_can_be_saved(tmp_path, server):
    file = tmp_path / "talk.json"
    with typing("chat", "--url", server.url, "--temperature", "0", columns=500) as user:
        user.wait_for("> ")
        user.type("What is Quire?\n")
        user.wait_for("chat server")
        user.wait_for("> ")
        user.type(f"/save {file}\n")
        user.wait_for("(saved in ")
        assert user.leave() == 0
    messages = json.loads(file.read_text())["conversations"][0]["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant"]
    assert messages[1]["text"].startswith("Quire is a")


@pytest.mark.parametrize("ways", [(), ("--url",), ("--ws", "--url")])
def test_ctrl_c_stops_the_answer_and_not_the_program(ways, server):
    where = (*ways, f"{server.url}/v1/") if ways else ways
    with typing("chat", *where, *ENDLESS) as user:
        user.wait_for("> ")
        user.type("What is Quire?\n")
        user.wait_for("chat server")
        user.type(CTRL_C)
        user.wait_for("(stopped)")
        user.wait_for("> ")
        user.type("/continue\n")
        user.wait_for("/continue\r\n")
        user.type(CTRL_C)
        user.wait_for("> ")
        user.type("/stats\n")
        user.wait_for("turns      1, ")
        user.interrupt_prompt()
        user.wait_for("(Ctrl-C once more ends the chat, and so does Ctrl-D)")
        user.interrupt_prompt()
        assert user.end() == 0
        assert "Traceback" not in user.seen


def test_the_arrow_key_brings_back_a_line_of_the_last_chat(tmp_path, server):
    with typing("chat", "--url", server.url) as user:
        user.wait_for("> ")
        user.type("/system Be kind.\n")
        user.wait_for("(the system message is set")
        user.wait_for("> ")
        user.type("/quit\n")
        assert user.end() == 0
    history = tmp_path / "state/quire/chat_history"
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    with typing("chat", "--url", server.url) as user:
        user.wait_for("> ")
        user.type(UP + UP + "\n")
        user.wait_for("(the system message is set")
        assert user.leave() == 0


def test_a_server_that_ends_loses_no_conversation(tmp_path):
    with serving() as running:
        running.wait_until_ready()
        with typing("chat", "--url", running.url, "--max-tokens", "8", columns=500) as user:
            user.wait_for("> ")
            user.type("What is Quire?\n")
            user.wait_for("/continue goes on")
            user.wait_for("> ")
            running.process.kill()
            running.end()
            user.type("And now?\n")
            user.wait_for("quire: error: cannot reach ")
            user.type(f"/save {tmp_path}/talk.md\n")
            user.wait_for("(saved in ")
            assert user.leave() == 0
    assert "## Answer\n\nQuire" in (tmp_path / "talk.md").read_text()


@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_without_colours_nothing_but_text_is_sent(environment, server):
    with typing("chat", "--url", server.url, "--temperature", "0", **environment) as user:
        user.wait_for("> ")
        user.type("What is Quire?\n")
        user.wait_for("Quire is")
        assert user.leave() == 0
        assert "\x1b" not in BRACKETED_PASTE.sub("", user.seen)
