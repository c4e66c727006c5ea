"""Conversations in files, which the chat page can read, and those of the page."""

import json
from pathlib import Path

import pytest

from app.commands.dialog.conversation import Conversation
from app.commands.dialog.conversation_file import read_file, write_file
from app.contract.errors import ConfigurationError
from tools.node import ROOT, run_tests

TURNS = [
    ("What is *this*?\nSecond line", "An answer.\n\n```py\nx\n```"),
    ("<!-- quire: user -->", "\\<!-- quire: cut 3 -->\n<!-- quire: assistant -->"),
]


def conversation(system: str = "Be brief.") -> Conversation:
    """A conversation with what is hard to write."""
    made = Conversation(system)
    for question, answer in TURNS:
        made.add(question, answer)
    return made


@pytest.mark.parametrize("name", ["a.json", "a.md"])
def test_half_a_character_of_a_server_costs_neither_the_conversation_nor_the_file(tmp_path, name):
    made = conversation()
    write_file(tmp_path / name, made, "guide")
    made.add("And?", "Half: \ud83d.")
    write_file(tmp_path / name, made, "guide", may_replace=True)
    assert read_file(tmp_path / name).turns[-1]["content"] in ("Half: ?.", "Half: \ufffd.")
    assert [file.name for file in tmp_path.iterdir()] == [name]


def test_json_comes_back_whole(tmp_path):
    write_file(tmp_path / "a.json", conversation(), "guide")
    assert read_file(tmp_path / "a.json") == conversation()


def test_markdown_comes_back_without_the_system_message(tmp_path):
    write_file(tmp_path / "a.md", conversation(), "guide")
    assert read_file(tmp_path / "a.md") == conversation("")


def test_the_page_reads_both(tmp_path):
    """With the page's own functions, under node."""
    for name in ("a.json", "a.md"):
        write_file(tmp_path / name, conversation(), "guide")
    test = tmp_path / "read.test.js"
    store = ROOT / "app/static/store"
    test.write_text(f"""
import assert from "node:assert/strict";
import {{ readFileSync }} from "node:fs";
import test from "node:test";
import {{ readArchive }} from {json.dumps(str(store / "archive.js"))};
import {{ readMarkdown }} from {json.dumps(str(store / "markdown_archive.js"))};
const turns = {json.dumps([text for turn in TURNS for text in turn])};
const read = (name) => readFileSync({json.dumps(str(tmp_path))} + "/" + name, "utf-8");
test("both", () => {{
  const json = readArchive(read("a.json"));
  assert.deepEqual(json.messages.map(({{ text }}) => text), turns);
  assert.equal(json.conversations[0].settings.system, "Be brief.");
  assert.equal(json.conversations[0].head, json.messages.at(-1).id);
  assert.equal(json.conversations[0].titleFrom, "question");
  assert.deepEqual(readMarkdown(read("a.md"), 1).messages.map(({{ text }}) => text), turns);
}});
""")
    result = run_tests(test)
    assert result.returncode == 0, result.stdout


def page_file(tmp_path: Path, **changes: object) -> Path:
    """A file as the page exports it: a branch with an edited question, a failed answer, and a text file."""

    def message(own_id: str, parent: str | None, role: str, text: str, **about: object) -> dict[str, object]:
        return {
            "id": own_id,
            "conversation": "c",
            "parent": parent,
            "role": role,
            "text": text,
            "createdAt": 1,
            **about,
        }

    messages = [
        message("1", None, "user", "old"), message("2", "1", "assistant", "old answer"),
        message("3", None, "user", "new", files=[{"name": "a.txt", "text": "in```file\n"}]),
        message("4", "3", "assistant", "new answer"),
        message("5", "4", "user", "failed"), message("6", "5", "assistant", "", state="failed"),
    ]  # fmt: skip
    record = {"id": "c", "title": "t", "createdAt": 1, "updatedAt": 5, "head": "6", "messages": messages, **changes}
    older = {"id": "d", "title": "t", "createdAt": 1, "updatedAt": 4, "messages": []}
    file = tmp_path / "page.json"
    file.write_text(
        json.dumps({"format": "quire.conversations", "version": 1, "conversations": [older, record, older]})
    )
    return file


def test_of_a_page_the_shown_branch_of_the_newest_conversation_is_read(tmp_path):
    found = read_file(page_file(tmp_path, settings={"system": "s", "temperature": 1}))
    assert found.system == "s"
    assert [turn["content"] for turn in found.turns] == ["a.txt:\n````\nin```file\n````\n\nnew", "new answer"]


def test_a_circle_of_messages_ends(tmp_path):
    file = page_file(tmp_path)
    archive = json.loads(file.read_text())
    archive["conversations"][1]["messages"][2]["parent"] = "6"
    file.write_text(json.dumps(archive))
    assert read_file(file).turns


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.txt", "", "must end with .json or .md"),
        ("a.json", "{", "no conversation"),
        ("a.json", "[]", "no conversation"),
        ("a.json", '{"format": "quire.conversations", "version": 2}', "no conversation"),
        ("a.json", '{"format": "quire.conversations", "version": 1, "conversations": []}', "no conversation"),
        ("a.json", "[" * 100_000, "no conversation"),
        ("a.md", "# Just a text", "no conversation"),
        ("a.md", b"\xff", "no conversation"),
        ("b.json", None, "No such file"),
    ],
)
def test_other_files_are_rejected_with_their_name(tmp_path, name, text, says):
    if text is not None:
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigurationError, match=says) as caught:
        read_file(tmp_path / name)
    assert name in caught.value.message


def test_a_file_that_exists_is_only_replaced_if_it_may_be(tmp_path):
    file = tmp_path / "a.md"
    file.write_text("mine")
    with pytest.raises(ConfigurationError, match="exists"):
        write_file(file, conversation(), "guide")
    assert file.read_text() == "mine"
    write_file(file, conversation(), "guide", may_replace=True)
    assert read_file(file).turns


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigurationError, match=r"none/a\.md cannot be written: No such file"):
        write_file(tmp_path / "none/a.md", conversation(), "guide")


def test_an_empty_conversation_can_be_saved(tmp_path):
    write_file(tmp_path / "a.json", Conversation("s"), "guide")
    assert read_file(tmp_path / "a.json") == Conversation("s")
