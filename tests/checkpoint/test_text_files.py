"""The text files of a folder: where its templates are, and that each file is read once."""

import json
from pathlib import Path

import pytest

from app.checkpoint import text_files
from app.checkpoint.text_files import MAX_TEMPLATE_BYTES, FolderText, read_template
from app.contract.errors import ModelRefused


def written(folder: Path, **files: object) -> FolderText:
    """A folder with these files: `a__b` is a.b; a value that is no text becomes JSON."""
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / name.replace("__", ".")).write_text(text)
    return FolderText(folder)


def test_a_file_of_the_template_comes_before_the_configuration(tmp_path: Path):
    text = written(tmp_path, chat_template__jinja="file", tokenizer_config__json={"chat_template": "config"})
    assert text.templates == (tmp_path / "chat_template.jinja", "file", None)


def test_a_further_template_in_a_folder_is_for_tools(tmp_path: Path):
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates/tool_use.jinja").write_text("tools")
    assert FolderText(tmp_path).templates == (tmp_path / "tokenizer_config.json", None, None)
    assert written(tmp_path, chat_template__jinja="file").templates.for_tools == "tools"


@pytest.mark.parametrize(
    ("given", "default", "for_tools"),
    [
        ("a", "a", None),
        (None, None, None),
        (7, None, None),
        ([{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}, 7], "a", "b"),
        ([{"name": "default", "template": "a"}, {"name": "tool_use", "template": 7}], "a", None),
        ([{"name": "tool_use", "template": "b"}], None, None),
    ],
)
def test_the_configuration_has_one_template_or_a_list(tmp_path: Path, given, default, for_tools):
    text = written(tmp_path, tokenizer_config__json={"chat_template": given})
    assert text.templates == (tmp_path / "tokenizer_config.json", default, for_tools)


def test_a_folder_may_have_no_template(tmp_path: Path):
    assert FolderText(tmp_path).templates == (tmp_path / "tokenizer_config.json", None, None)


@pytest.mark.parametrize(("given", "is_chat_only"), [(True, True), (1, False), (None, False)])
def test_a_model_is_chat_only_if_its_generation_config_says_so(tmp_path: Path, given, is_chat_only):
    assert written(tmp_path, generation_config__json={"chat_only": given}).is_chat_only is is_chat_only
    assert not FolderText(tmp_path / "nowhere").is_chat_only


def test_each_file_is_read_once_and_known_ones_never(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    read: list[str] = []
    for name in ("read_json", "read_template"):
        function = getattr(text_files, name)
        monkeypatch.setattr(
            text_files, name, lambda file, function=function: (read.append(file.name), function(file))[1]
        )
    written(tmp_path, chat_template__jinja="file", tokenizer_config__json={})
    text = FolderText(tmp_path, {"generation_config.json": {"chat_only": True}})
    for _ in range(2):
        assert text.templates.default == "file" and text.is_chat_only and text.read("tokenizer_config.json") == {}
    assert read == ["chat_template.jinja", "tokenizer_config.json"]


def test_the_tokenizer_is_made_of_the_folder(tmp_path: Path):
    text = FolderText(tmp_path)
    assert text.make_tokenizer(lambda given: given, lambda fields: pytest.fail("there is no metadata")) is text


def test_a_template_that_is_too_long_or_not_there_is_refused(tmp_path: Path):
    file = tmp_path / "a.jinja"
    with pytest.raises(OSError, match=r"a\.jinja"):
        read_template(file)
    file.write_text("x" * MAX_TEMPLATE_BYTES)
    assert len(read_template(file)) == MAX_TEMPLATE_BYTES
    file.write_text("x" * (MAX_TEMPLATE_BYTES + 1))
    with pytest.raises(ValueError, match="is larger than"):
        read_template(file)
    file.write_text("version https://git-lfs.github.com/spec/v1")
    with pytest.raises(ModelRefused, match="pointer"):
        read_template(file)
