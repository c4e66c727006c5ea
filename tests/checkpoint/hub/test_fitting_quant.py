"""The quant that fits is the largest one of the repository that can be served."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.checkpoint.hub.fitting_quant import FittingQuant, fitting_quant, known_files, quant_advice
from app.checkpoint.hub.hub_cache import HubName, repo_folder
from app.checkpoint.hub.repo_files import RepoFile, choose
from app.config.settings import ModelConfig
from tests.checkpoint.hub.hub_fixtures import OLD

NAME = HubName("owner/gguf", "Q8_0")
LABELS = {"Q8_0": 850, "Q6_K": 660, "UD-Q5_K_XL": 640, "Q5_K_M": 570, "Q4_K_M": 490, "IQ4_XS": 430, "Q4_0_8_8": 420,
          "Q4_0": 410, "Q3_K_M": 390, "Q2_K": 300}  # fmt: skip
OTHERS = [RepoFile("model.safetensors", 1), RepoFile("m-Q5_0-00001-of-00002.gguf", 500)]
FILES = [*OTHERS, *(RepoFile(f"m-{label}.gguf", size) for label, size in LABELS.items())]


@pytest.mark.parametrize(
    ("room", "label"),
    [(10**6, "Q8_0"), (876, "Q8_0"), (875, "Q6_K"), (670, "Q5_K_M"), (580, "Q4_K_M"), (500, "Q4_0"), (422, None)],
)
def test_the_largest_whole_quant_with_supported_types_is_named(room: int, label: str | None):
    found = fitting_quant(1000, room, NAME, FILES)
    assert found == (label and FittingQuant(f"owner/gguf:{label}", LABELS[label], is_listed=True))


def test_a_quant_of_several_files_is_named_by_its_file():
    twins = [RepoFile("a-Q4_0.gguf", 10), RepoFile("b-Q4_0.gguf", 20)]
    found = fitting_quant(1000, 100, NAME, twins)
    assert found is not None and str(found) == "owner/gguf/b-Q4_0.gguf (0.0 kB)"


@pytest.mark.parametrize(("room", "quant"), [(1100 * 10**6, "Q8_0"), (760 * 10**6, "Q5_K_M"), (600 * 10**6, None)])
def test_without_a_repository_the_bits_of_a_weight_tell_the_quant(room: int, quant: str | None):
    found = fitting_quant(10**9, room)
    assert (found and found.name) == quant
    assert found is None or str(found).startswith(f"the same model as {quant} (about ")


def test_a_repository_is_known_as_far_as_the_cache_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert known_files(NAME, None) == []
    folder = repo_folder(NAME.repo) / "snapshots" / OLD
    folder.mkdir(parents=True)
    (folder / "m-Q4_0.gguf").write_bytes(b"1234")
    assert known_files(NAME, None) == known_files(NAME, OLD) == [RepoFile("m-Q4_0.gguf", 4)]
    given = ModelConfig(model="owner/gguf:Q8_0")
    assert quant_advice(given, 1000, 100) == "What fits: owner/gguf:Q4_0 (0.0 kB)."
    assert quant_advice(given, 1000, 4) == "No smaller quant that can be served fits; use a smaller model."
    assert "the same model as Q8_0" in quant_advice(ModelConfig(model="m.gguf"), 8, 100)


def test_what_is_named_can_be_chosen():
    found = fitting_quant(1000, 500, NAME, FILES)
    assert found is not None
    assert choose(NAME.repo, FILES, quant=found.name.partition(":")[2]).files[0].path == "m-Q4_0.gguf"
