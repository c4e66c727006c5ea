"""What a model's name means: local files come before the hub, and every refusal says what names may be."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import NoReturn

import pytest

from app.checkpoint.hub.hub_cache import HubName
from app.checkpoint.names import hub_name, resolve, served_name
from app.config.settings import ModelConfig
from app.contract.errors import ConfigurationError, ModelRefused


@pytest.mark.parametrize(("model", "parts"), [
    ("owner/name", HubName("owner/name")),
    ("owner/name.v2-GGUF:Q4_K_M", HubName("owner/name.v2-GGUF", "Q4_K_M")),
    ("owner/name:UD-Q4_K_XL", HubName("owner/name", "UD-Q4_K_XL")),
    ("owner/name/sub/m-Q8_0.gguf", HubName("owner/name", "", "sub/m-Q8_0.gguf")),
    ("guide", None), ("smollm2", None), ("llama3.2", None), ("llama3.2:1b", None), ("a/b/c", None), ("./a/b", None),
    ("a/b.gguf", None), ("a/b/../c.gguf", None), ("/a/b", None), ("a/b:", None), ("a/b:c:d", None), ("a b/c", None),
    ("mod\u00e8les/llama", None), ("~/a", None),
])  # fmt: skip
def test_hub_names_are_told_from_paths(model: str, parts: HubName | None):
    assert hub_name(model) == parts
    assert parts is None or str(parts) == model


def test_local_files_come_before_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert resolve("guide").parts[-3:] == ("app", "models", "guide")
    assert resolve(str(tmp_path)) == tmp_path.resolve()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "owner" / "name").mkdir(parents=True)
    assert resolve("owner/name") == (tmp_path / "owner" / "name").resolve()


@pytest.mark.parametrize("name", [
    "./nothing", "/no/such/folder", "nothing", "llama3.2", "a/b/c", "~/nothing-here", "mod\u00e8les/llama", "a b/c",
    "a/b.gguf",
])  # fmt: skip
def test_the_error_for_a_missing_model_lists_the_accepted_forms(name: str):
    with pytest.raises(ModelRefused) as refusal:
        resolve(name)
    assert f"There is no folder or file {name}; give a checkpoint folder, a GGUF file" in refusal.value.message
    assert "owner/name:QUANT" in refusal.value.message


@pytest.mark.parametrize("target", ["link", "blobs/nothing"])
def test_a_link_that_leads_to_nothing_is_refused_as_one(tmp_path: Path, target: str):
    (tmp_path / "link").symlink_to(tmp_path / target)
    with pytest.raises(ModelRefused, match="link that leads to nothing"):
        resolve(str(tmp_path / "link"))


def test_a_pointer_of_git_lfs_is_named_whatever_its_name_is(tmp_path: Path):
    (tmp_path / "blob").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    with pytest.raises(ModelRefused, match="git lfs pull"):
        resolve(str(tmp_path / "blob"))


def test_a_gguf_file_is_its_own_path_also_as_a_link_to_a_blob(tmp_path: Path):
    (tmp_path / "blob").touch()
    (tmp_path / "m.gguf").symlink_to(tmp_path / "blob")
    assert resolve(str(tmp_path / "m.gguf")) == tmp_path / "m.gguf"
    with pytest.raises(ModelRefused, match="is a file that is no GGUF file"):
        resolve(str(tmp_path / "blob"))


def test_a_file_that_begins_as_gguf_is_one_whatever_its_name_is(tmp_path: Path):
    for name in ("sha256-0123", "m.bin", "m-00001-of-00013.gguf", "m-00002-of-00002.safetensors"):
        (tmp_path / name).write_bytes(b"GGUF and so on")
        assert resolve(str(tmp_path / name)) == tmp_path / name


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "model.safetensors.index.json"])
def test_one_file_of_a_checkpoint_is_refused_with_its_folder(tmp_path: Path, name: str):
    (tmp_path / name).write_bytes(b"{}")
    with pytest.raises(ModelRefused, match=f"give its folder, {tmp_path}"):
        resolve(str(tmp_path / name))


def test_a_part_of_no_parts_is_a_whole_file(tmp_path: Path):
    (tmp_path / "m-00001-of-00000.gguf").touch()
    assert resolve(str(tmp_path / "m-00001-of-00000.gguf")) == tmp_path / "m-00001-of-00000.gguf"
    assert resolve(str(tmp_path)) == tmp_path / "m-00001-of-00000.gguf"


def test_what_the_system_does_not_let_read_is_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(ModelRefused, match=r"^Cannot read m+: File name too long\.$"):
        resolve("m" * 300)

    def forbid(path: Path) -> NoReturn:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    for method in ("is_dir", "iterdir"):
        with monkeypatch.context() as patched, pytest.raises(ModelRefused) as refusal:
            patched.setattr(Path, method, forbid)
            resolve(str(tmp_path))
        assert refusal.value.message == f"Cannot read {tmp_path}: Permission denied." and refusal.value.exit_code == 2


def test_a_file_that_vanishes_while_its_folder_is_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "m.gguf").symlink_to("nowhere")
    monkeypatch.setattr(Path, "is_file", lambda path: True)
    with pytest.raises(ModelRefused, match=r"Cannot read .*/m\.gguf: No such file or directory\.$"):
        resolve(str(tmp_path))


def test_a_folder_of_gguf_files_is_chosen_from_as_on_the_hub(tmp_path: Path):
    for name in ("m-Q2_K.gguf", "m-Q3_K_S.gguf"):
        (tmp_path / name).touch()
    with pytest.raises(ModelRefused, match="several GGUF variants"):
        resolve(str(tmp_path))
    (tmp_path / "m-Q4_K_M.gguf").touch()
    assert resolve(str(tmp_path)) == tmp_path / "m-Q4_K_M.gguf"
    (tmp_path / "config.json").touch()
    assert resolve(str(tmp_path)) == tmp_path


def test_only_hub_models_have_revisions(tmp_path: Path):
    for name in ("guide", str(tmp_path)):
        with pytest.raises(ConfigurationError, match="only these have revisions"):
            resolve(name, "main")


@pytest.mark.parametrize(("model", "name"), [
    ("owner/name", "name"), ("owner/name:Q4_K_M", "name:Q4_K_M"), ("owner/name/m-Q8_0.gguf", "m-Q8_0"),
    ("/a/m-Q8_0-00001-of-00003.gguf", "m-Q8_0"), ("/a/m.GGUF", "m"), ("guide", "guide"), ("smollm2", "smollm2"),
    ("/a/b/", "b"), ("./guide", "guide"), ("/a/b/.", "b"), ("/a/b/x/..", "b"), ("~/models/m", "m"), ("/", "/"),
])  # fmt: skip
def test_the_served_name_follows_from_the_name_where_none_is_given(model: str, name: str):
    assert served_name(ModelConfig(model=model)) == name
    assert served_name(ModelConfig(model=model, served_model_name="mine")) == "mine"


def test_the_served_name_does_not_follow_symlinks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "v3").mkdir()
    (tmp_path / "latest").symlink_to(tmp_path / "v3")
    assert served_name(ModelConfig(model=str(tmp_path / "latest"))) == "latest"
    monkeypatch.chdir(tmp_path / "v3")
    assert served_name(ModelConfig(model=".")) == "v3"
    assert served_name(ModelConfig(model="..")) == Path(os.getcwd()).parent.name
