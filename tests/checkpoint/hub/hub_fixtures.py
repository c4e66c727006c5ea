"""Fixtures of tests that download from a hub on the loopback."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.checkpoint.hub import download
from tests.checkpoint.hub.fake_hub import FakeHub, FakeRepo, serving
from tests.checkpoints import tiny

OLD, NEW = "a" * 40, "b" * 40


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A hub with `owner/tiny` (safetensors and more) and `owner/quants` (GGUF), and an empty cache."""
    for name in ("HF_HUB_OFFLINE", "HF_TOKEN", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setattr(download, "RETRY_S", 0.0)
    hub = FakeHub({"owner/tiny": FakeRepo(checkpoint_files()), "owner/quants": FakeRepo(quant_files())})
    with serving(hub):
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        yield hub


def checkpoint_files() -> dict[str, bytes]:
    """The files of a tiny model, and others that are not needed."""
    files = {file.name: file.read_bytes() for file in tiny("Llama").iterdir() if file.is_file()}
    return {**files, "pytorch_model.bin": b"pickle", "original/model.safetensors": b"x" * 99, "README.md": b"read me"}


def quant_files() -> dict[str, bytes]:
    """Files of GGUF variants, one of them in parts; they are no real ones."""
    return {
        "tiny-Q4_K_M.gguf": b"4" * 1000,
        "tiny-Q8_0-00001-of-00002.gguf": b"8" * 700,
        "tiny-Q8_0-00002-of-00002.gguf": b"9" * 800,
        "mmproj-tiny-F16.gguf": b"m" * 500,
        "config.json": b"{}",
    }


def cut_network(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on nobody answers."""
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    hub.requests.clear()
