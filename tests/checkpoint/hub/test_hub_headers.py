"""Models of a hub are inspected without their weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.checkpoint.hub.hub_cache import HubName
from app.checkpoint.hub.hub_headers import fetch_headers, find_downloaded
from app.checkpoint.hub.hub_listing import list_files
from app.checkpoint.hub.hub_models import find_or_pull
from app.checkpoint.inspection import inspect_at
from app.checkpoint.spec import ModelSpec
from app.config.settings import ModelConfig
from app.contract.errors import ModelRefused, Unreachable
from tests.checkpoint.hub.fake_hub import FakeHub, FakeRepo, digest
from tests.checkpoint.hub.hub_fixtures import NEW, hub
from tests.checkpoint.hub.test_hub_models import said
from tests.checkpoints import tiny
from tests.gguf_writer import GGUF_MODELS, model_fields, stored_tensors, text_fields, tiny_gguf, write_gguf

__all__ = ["hub"]
GGUF = HubName("owner/gguf")


def put(hub: FakeHub, *files: Path) -> None:
    """Make a repository of files."""
    hub.repos[GGUF.repo] = FakeRepo({file.name: file.read_bytes() for file in files})


def spec_of(file: Path) -> ModelSpec:
    """The spec of a GGUF file."""
    return inspect_at(file, ModelConfig()).spec


def headers_of(name: HubName, folder: Path) -> Path:
    """The path of a model of which there are only headers."""
    return fetch_headers(name, list_files(name, None), folder)


def test_of_a_checkpoint_only_configurations_are_downloaded(hub: FakeHub, tmp_path: Path):
    folder = headers_of(HubName("owner/tiny"), tmp_path)
    assert [file.name for file in folder.iterdir()] == ["config.json"]
    assert (folder / "config.json").read_bytes() == (tiny("Llama") / "config.json").read_bytes()
    weights = hub.repos["owner/tiny"].files["model.safetensors"]
    assert not hub.sent("GET", digest("model.safetensors", weights))


def test_of_a_gguf_file_only_the_header_is_downloaded(hub: FakeHub, tmp_path: Path):
    file = tiny_gguf(tmp_path / "m.gguf", hidden_size=512, intermediate_size=2048)
    put(hub, file)
    found = headers_of(GGUF, tmp_path / "plan")
    assert found.stat().st_size == file.stat().st_size > 8 * 2**20
    assert found.stat().st_blocks * 512 <= 2 * 2**20, "the header is read in steps of 1 MiB"
    assert spec_of(found) == spec_of(file)


def test_all_parts_of_a_split_file_have_their_headers(hub: FakeHub, tmp_path: Path):
    folder = tiny("Qwen3")
    tensors = list(stored_tensors(folder, "Qwen3").items())
    metadata = model_fields(folder, "Qwen3") | text_fields(folder) | {"split.tensors.count": len(tensors)}
    parts = [
        write_gguf(
            tmp_path / f"m-Q8_0-{number + 1:05}-of-00003.gguf",
            (metadata if number == 0 else {}) | {"split.no": number, "split.count": 3},
            dict(tensors[number::3]),
        )
        for number in range(3)
    ]
    put(hub, *parts)
    assert spec_of(headers_of(GGUF, tmp_path / "plan")) == spec_of(parts[0])


def test_divisors_of_the_frequencies_are_downloaded_wherever_they_are(hub: FakeHub, tmp_path: Path):
    """They are part of the spec, and zeros in their place would be rejected."""
    fields = GGUF_MODELS["Phi3"] | {"hidden_size": 512, "intermediate_size": 2048}
    file = tiny_gguf(tmp_path / "m.gguf", "Phi3", **fields)
    put(hub, file)
    found = spec_of(headers_of(GGUF, tmp_path / "plan"))
    assert found == spec_of(file)
    ranges = [headers.get("range") for headers in hub.sent("GET", digest("m.gguf", file.read_bytes()))]
    assert ranges[0] is None and len(ranges) == 3 and all(ranges[1:])


def test_what_is_damaged_missing_or_out_of_reach_is_said(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(ModelRefused, match=r"owner/quants/tiny-Q4_K_M\.gguf .*GGUF"):
        headers_of(HubName("owner/quants"), tmp_path)
    with pytest.raises(ModelRefused, match=r"There is no owner/quants:Q2_K"):
        headers_of(HubName("owner/quants", "Q2_K"), tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(Unreachable, match="HF_HUB_OFFLINE"):
        headers_of(HubName("owner/tiny"), tmp_path)


def test_a_connection_that_breaks_in_a_header_is_one_error(hub: FakeHub, tmp_path: Path):
    put(hub, tiny_gguf(tmp_path / "m.gguf"))
    hub.cut_after = [100]
    with pytest.raises(Unreachable, match=r"The header of owner/gguf cannot be downloaded: "):
        headers_of(GGUF, tmp_path / "plan")


def test_what_is_downloaded_is_found_at_any_commit(hub: FakeHub):
    name = HubName("owner/tiny")
    assert find_downloaded(name, None) is None
    path = find_or_pull(name, None, said()[0])
    assert find_downloaded(name, None) == path
    assert find_downloaded(name, NEW) is None
