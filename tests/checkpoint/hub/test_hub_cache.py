"""The hub library's cache on disk, also as other programs fill it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from app.checkpoint.hub.hub_cache import HubName, Snapshot, cache_root, repo_folder, repos, snapshot_at, snapshots
from app.checkpoint.hub.repo_files import variants
from tests.checkpoints import tiny

NAME = HubName("owner/na--me")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def list_files(snapshot: Snapshot, *paths: str) -> None:
    """Write the library's listing of the empty files that a repository has."""
    trees = repo_folder(snapshot.repo) / "trees"
    trees.mkdir(exist_ok=True)
    listing = {"format_version": 1, "files": {path: {"size": 0} for path in paths}}
    (trees / f"{snapshot.commit}.json").write_text(json.dumps(listing))


def put(commit: str, *paths: str, repo: str = NAME.repo) -> Snapshot:
    """Write a snapshot of empty files."""
    folder = repo_folder(repo) / "snapshots" / commit
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).touch()
    return Snapshot(repo, commit, folder)


@pytest.mark.parametrize(("environ", "root"), [
    ({"HF_HUB_CACHE": "/a"}, "/a"), ({"HF_HOME": "/b"}, "/b/hub"), ({"XDG_CACHE_HOME": "/c"}, "/c/huggingface/hub"),
    ({"HF_HOME": "~/d"}, "/home/u/d/hub"), ({}, "/home/u/.cache/huggingface/hub"), ({"HF_HOME": "$HOME/e"},
    "/home/u/e/hub"), ({"HUGGINGFACE_HUB_CACHE": "/f", "HF_HOME": "/b"}, "/f"),
])  # fmt: skip
def test_the_folder_is_the_librarys(environ: dict[str, str], root: str, monkeypatch: pytest.MonkeyPatch):
    for name in ("HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME", "HUGGINGFACE_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {**environ, "HOME": "/home/u"}.items():
        monkeypatch.setenv(name, value)
    assert str(cache_root()) == root


def test_a_repository_is_found_by_its_name_and_its_snapshots_newest_first():
    assert repos() == [] and snapshots(NAME.repo) == []
    old, new = put("a" * 40, "x.gguf"), put("b" * 40, "x.gguf")
    os.utime(old.folder, (1, 1))
    for other in ("datasets--owner--data", "models--gpt2"):  # the latter cannot be named: `gpt2` is a folder
        (cache_root() / other).mkdir()
    assert repos() == [NAME.repo] and snapshots(NAME.repo) == [new, old]
    assert snapshot_at(NAME.repo, "a" * 40) == old and snapshot_at(NAME.repo, "main") is None
    (repo_folder(NAME.repo) / "refs").mkdir()
    (repo_folder(NAME.repo) / "refs" / "main").write_text("a" * 40)
    assert snapshot_at(NAME.repo, "main") == old


def test_a_gguf_file_that_another_program_left_is_found():
    snapshot = put("a" * 40, "m-Q6_K.gguf", "n/m-Q2_K-00001-of-00002.gguf", "n/m-Q2_K-00002-of-00002.gguf")
    assert snapshot.find(HubName(NAME.repo, "q6_k")) == snapshot.folder / "m-Q6_K.gguf"
    assert snapshot.find(HubName(NAME.repo, "Q2_K")) == snapshot.folder / "n/m-Q2_K-00001-of-00002.gguf"
    assert snapshot.find(HubName(NAME.repo, "Q8_0")) is None and snapshot.find(NAME) is None


@pytest.mark.parametrize(
    "missing", ["config.json", "model-00002-of-00002.safetensors", "model-00001-of-00002.safetensors"]
)
def test_a_snapshot_without_a_needed_file_is_not_complete(missing: str):
    folder = tiny("Llama", num_shards=2)
    names = [file.name for file in folder.iterdir()]
    assert missing in names
    snapshot = put("a" * 40)
    snapshot.folder.mkdir(parents=True)
    for name in names:
        (snapshot.folder / name).symlink_to(folder / name)
    assert snapshot.find(NAME) == snapshot.folder
    (snapshot.folder / missing).unlink()
    (snapshot.folder / missing).symlink_to("nowhere")
    assert snapshot.find(NAME) is None


def test_the_listing_of_the_library_decides_what_a_name_means():
    snapshot = put("a" * 40, "m-Q8_0.gguf")
    assert snapshot.find(NAME) == snapshot.folder / "m-Q8_0.gguf"
    list_files(snapshot, "m-Q8_0.gguf", "m-Q4_K_M.gguf")
    assert snapshot.find(NAME) is None, "the default is Q4_K_M, which is not there"
    assert snapshot.find(HubName(NAME.repo, "Q8_0")) is not None
    for damaged in ("", "[]", '{"files": 1}', '{"files": {"a": 1}}', '{"files": {"a": {"size": "x"}}}'):
        (repo_folder(NAME.repo) / "trees" / f"{'a' * 40}.json").write_text(damaged)
        assert snapshot.listed() is None


def test_a_gguf_file_needs_nothing_beside_it():
    """As `hf download owner/name --include '*Q4_K_M.gguf'` leaves it."""
    snapshot = put("a" * 40, "m-Q4_K_M.gguf", "m-Q8_0-00001-of-00002.gguf")
    list_files(snapshot, "m-Q4_K_M.gguf", "config.json", "chat_template.jinja", "m-Q8_0-00001-of-00002.gguf",
               "m-Q8_0-00002-of-00002.gguf")  # fmt: skip
    assert snapshot.find(HubName(NAME.repo, "Q4_K_M")) == snapshot.folder / "m-Q4_K_M.gguf"
    assert snapshot.find(HubName(NAME.repo, "Q8_0")) is None, "a part is missing"


def test_safetensors_need_the_small_files_that_are_listed():
    snapshot = put("a" * 40, "model.safetensors", "config.json")
    (variant,) = variants(snapshot.present())
    assert snapshot.is_whole(variant)
    list_files(snapshot, "model.safetensors", "config.json", "tokenizer.json")
    assert not snapshot.is_whole(variant) and snapshot.find(NAME) is None


def test_a_variant_has_the_name_that_finds_it():
    snapshot = put("a" * 40, "m-Q8_0.gguf", "n-Q4_0.gguf", "plain.gguf")
    list_files(snapshot, "m-Q8_0.gguf", "n-Q8_0.gguf", "n-Q4_0.gguf", "plain.gguf")
    names = [snapshot.name_of(variant) for variant in variants(snapshot.present())]
    assert {name.file or name.quant for name in names} == {"m-Q8_0.gguf", "Q4_0", "plain.gguf"}
    assert all(snapshot.find(name) is not None for name in names)
