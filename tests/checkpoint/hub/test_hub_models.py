"""Models of the hub: only what is needed is downloaded, once, checked, and found again without a network."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest

from app.checkpoint.checkpoint_folder import Checkpoint
from app.checkpoint.hub import download, hub_listing
from app.checkpoint.hub import hub_models as module
from app.checkpoint.hub.hub_cache import HubName, cache_root, repo_folder, snapshot_at
from app.checkpoint.hub.hub_models import find_or_pull, pull
from app.checkpoint.hub.repo_files import RepoFile
from app.checkpoint.names import resolve
from app.contract.errors import CannotStart, ModelRefused, Unreachable
from app.observe.console import Console
from tests.checkpoint.hub.fake_hub import FakeHub, FakeRepo
from tests.checkpoint.hub.hub_fixtures import NEW, OLD, checkpoint_files, cut_network, hub, quant_files

__all__ = ["hub"]
TINY, QUANTS = HubName("owner/tiny"), HubName("owner/quants")


def said() -> tuple[Console, io.StringIO]:
    """A console, and what it has printed."""
    stream = io.StringIO()
    return Console(stream), stream


def files_below(folder: Path) -> set[str]:
    return {file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()}


def test_a_checkpoint_is_downloaded_without_what_it_does_not_need(hub: FakeHub):
    console, stream = said()
    path = pull(TINY, None, console)
    small = {name for name in checkpoint_files() if name.endswith(".json")}
    assert files_below(path) == {*small, "model.safetensors"}
    assert Checkpoint.open(path).tensors
    assert "owner/tiny at aaaaaaa: 1 weight file, " in stream.getvalue() and "are free." in stream.getvalue()


def test_what_is_there_is_found_without_asking_the_network(hub: FakeHub):
    path = resolve("owner/tiny")
    hub.requests.clear()
    assert resolve("owner/tiny") == path
    assert resolve("owner/tiny", OLD) == path, "a whole commit cannot change"
    assert hub.requests == []


def test_one_quant_is_downloaded_with_all_its_parts(hub: FakeHub):
    path = resolve("owner/quants:q8_0")
    assert path.name == "tiny-Q8_0-00001-of-00002.gguf"
    assert files_below(path.parent) == {"config.json", *(name for name in quant_files() if "Q8_0" in name)}
    assert resolve("owner/quants").name == "tiny-Q4_K_M.gguf", "the default, although Q8_0 alone is there"
    assert resolve("owner/quants/tiny-Q8_0-00002-of-00002.gguf") == path


def test_a_quant_that_the_hub_lacks_is_refused_with_the_list(hub: FakeHub):
    with pytest.raises(ModelRefused) as refusal:
        resolve("owner/quants:Q5_K_M")
    assert "Q4_K_M (1.0 kB), Q8_0 (1.5 kB)" in refusal.value.message and "mmproj" not in refusal.value.message


def test_a_broken_connection_is_continued_where_it_broke(hub: FakeHub):
    hub.cut_after = [300, 200]
    path = resolve("owner/quants:Q4_K_M")
    assert path.read_bytes() == quant_files()["tiny-Q4_K_M.gguf"]
    assert [headers.get("range") for headers in hub.sent("GET", "/cdn/")] == [None, "bytes=300-", "bytes=500-"]


def test_an_interrupted_download_is_continued_by_the_next(hub: FakeHub, monkeypatch: pytest.MonkeyPatch):
    shown: list[int] = []

    def interrupt(self: object, done: int) -> None:
        shown.append(done)
        if done >= 400:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(module.DownloadProgress, "show", interrupt)
        patched.setattr(download, "RETRY_S", 60.0)
        hub.cut_after = [400, 0]  # the second response brings nothing, so the next one is waited for
        with pytest.raises(KeyboardInterrupt):
            resolve("owner/quants:Q4_K_M")
    hub.cut_after = []
    assert snapshot_at("owner/quants", "main") is None
    hub.requests.clear()
    console, stream = said()
    assert pull(HubName("owner/quants", "Q4_K_M"), None, console).stat().st_size == 1000
    assert [headers.get("range") for headers in hub.sent("GET", "/cdn/")] == ["bytes=400-"]
    assert "of which 0.4 kB are there" in stream.getvalue()


def test_a_file_with_another_content_is_refused_and_not_kept(hub: FakeHub):
    hub.damage = b"?" * 1000
    with pytest.raises(CannotStart, match="not the expected file"):
        resolve("owner/quants:Q4_K_M")
    hub.damage = b""
    assert resolve("owner/quants:Q4_K_M").read_bytes() == quant_files()["tiny-Q4_K_M.gguf"]


def test_the_token_is_sent_to_the_hub_and_not_to_where_it_redirects(hub: FakeHub, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    resolve("owner/tiny")
    assert {headers.get("authorization") for headers in hub.sent("GET", "/resolve/")} == {"Bearer hf_secret"}
    assert {headers.get("authorization") for headers in hub.sent("GET", "/cdn/")} == {None}


@pytest.mark.parametrize(("location", "is_sent"), [
    ("https://hub.test/file", True), ("http://hub.test/file", False), ("https://hub.test:8/file", False),
    ("https://cdn.test/file", False),
])  # fmt: skip
def test_the_token_is_sent_to_the_hubs_own_scheme_and_host_alone(
    location: str, is_sent: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HF_ENDPOINT", "https://hub.test")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", lambda url, **kw: SimpleNamespace(location=location))
    monkeypatch.setattr(hub_listing, "open_url", lambda url, offset, headers: (url, headers))
    file = RepoFile("m.gguf", 1)
    opened = hub_listing.opener_of("owner/name", hub_listing.Listing(OLD, [file], {}), file)(0)
    assert opened == (location, {"Authorization": "Bearer hf_secret"} if is_sent else {})


@pytest.mark.parametrize(("name", "revision", "words"), [
    ("owner/gated", None, "hf auth login`, and accept its licence at http"),
    ("owner/nothing", None, "There is no folder owner/nothing, and the hub has no model of that name"),
    ("owner/tiny", "v9", "has no revision 'v9'"),
    ("owner/empty", None, "neither safetensors nor GGUF"),
    ("owner/pickles", None, "only pickled weights"),
])  # fmt: skip
def test_what_the_hub_refuses_is_refused_in_one_line(hub: FakeHub, name: str, revision: str | None, words: str):
    hub.repos["owner/gated"] = FakeRepo(checkpoint_files(), is_gated=True)
    hub.repos["owner/empty"] = FakeRepo({"README.md": b"text"})
    hub.repos["owner/pickles"] = FakeRepo({"pytorch_model.bin": b"x"})
    with pytest.raises(ModelRefused) as refusal:
        resolve(name, revision)
    assert words in refusal.value.message and "\n" not in refusal.value.message


def test_without_a_network_nothing_can_be_downloaded(hub: FakeHub, monkeypatch: pytest.MonkeyPatch):
    cut_network(hub, monkeypatch)
    with pytest.raises(Unreachable, match=r"owner/tiny cannot be downloaded from http.*refused; check the network"):
        resolve("owner/tiny")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(Unreachable, match="HF_HUB_OFFLINE is set"):
        resolve("owner/tiny")


def test_a_revision_is_asked_for_and_served_from_the_cache_without_a_network(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
):
    old = resolve("owner/tiny")
    hub.repos["owner/tiny"].commit = NEW
    assert resolve("owner/tiny") == old
    new = resolve("owner/tiny", "main")
    assert (old.name, new.name) == (OLD, NEW)
    cut_network(hub, monkeypatch)
    assert resolve("owner/tiny", "main") == new, "one answer for the whole process"
    console, stream = said()
    assert module.pull_or_find(TINY, "main", console) == new
    assert stream.getvalue().count("\n") == 1 and f"Using what was downloaded before: {NEW}" in stream.getvalue()


def test_an_older_snapshot_is_served_if_the_newest_is_incomplete_and_there_is_no_network(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
):
    old = resolve("owner/tiny")
    newer = repo_folder("owner/tiny") / "snapshots" / NEW
    newer.mkdir()
    (newer / "config.json").write_text("{}")
    (repo_folder("owner/tiny") / "refs" / "main").write_text(NEW)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    console, stream = said()
    assert find_or_pull(TINY, None, console) == old
    assert f"Using what was downloaded before: {OLD}" in stream.getvalue()


def test_what_is_there_of_a_repository_is_named_if_the_hub_cannot_be_reached(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
):
    resolve("owner/quants:Q8_0")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(CannotStart, match=r"HF_HUB_OFFLINE is set\. On this machine: owner/quants:Q8_0\.$"):
        resolve("owner/quants:Q4_K_M")


def test_a_full_disk_is_noticed_before_the_download(hub: FakeHub, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module.shutil, "disk_usage", lambda folder: SimpleNamespace(free=10))
    with pytest.raises(CannotStart, match=r"needs .* free; remove models"):
        resolve("owner/tiny")
    assert hub.sent("GET", "/resolve/") == []


def test_names_of_files_cannot_leave_the_cache(hub: FakeHub):
    hub.repos["owner/evil"] = FakeRepo({"../../evil.json": b"{}", "a.gguf": b"g"})
    path = resolve("owner/evil")
    assert files_below(path.parent) == {"a.gguf"}


def test_a_gguf_file_that_another_program_downloaded_alone_is_served_offline(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
):
    huggingface_hub.snapshot_download(
        "owner/quants", allow_patterns="*Q4_K_M.gguf", cache_dir=cache_root(), endpoint=hub.url
    )
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    hub.requests.clear()
    assert resolve("owner/quants:Q4_K_M").name == "tiny-Q4_K_M.gguf" and hub.requests == []
