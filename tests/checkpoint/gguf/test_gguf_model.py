"""A model in GGUF files: what is inspected beside its spec."""

from pathlib import Path

import pytest

from app.checkpoint.gguf.gguf_model import read_gguf
from app.config.settings import ModelConfig
from app.contract.errors import ModelRefused
from app.contract.requests import PoolingKind
from tests.checkpoints import tiny
from tests.gguf_writer import model_fields, stored_tensors, text_fields, tiny_gguf, write_gguf


def with_pooling(file: Path, number: int | None) -> Path:
    """A file that says how to pool."""
    pooling = {} if number is None else {"qwen3.pooling_type": number}
    folder = tiny("Qwen3")
    fields = model_fields(folder, "Qwen3") | text_fields(folder) | pooling
    return write_gguf(file, fields, stored_tensors(folder, "Qwen3"))


@pytest.mark.parametrize(("number", "kind"), [(None, PoolingKind.MEAN), (1, PoolingKind.MEAN), (3, PoolingKind.LAST)])
def test_a_file_says_how_to_pool(tmp_path: Path, number: int | None, kind: PoolingKind):
    """Qwen3-Embedding says 3."""
    assert read_gguf(with_pooling(tmp_path / "m.gguf", number), ModelConfig()).pooling is kind


def test_another_pooling_is_refused_by_name(tmp_path: Path):
    with pytest.raises(ModelRefused, match="qwen3: pooling_type is 4"):
        read_gguf(with_pooling(tmp_path / "m.gguf", 4), ModelConfig())


@pytest.mark.parametrize(("architecture", "pair_rows"), [("Llama", 16), ("Qwen3", 0)])
def test_rows_of_queries_and_keys_are_pair_after_pair_in_files_of_some_families(
    tmp_path: Path, architecture: str, pair_rows: int
):
    tensors = read_gguf(tiny_gguf(tmp_path / "m.gguf", architecture), ModelConfig()).tensors
    assert tensors is not None
    rotated = {name for name in tensors if name.split(".")[-2] in ("q_proj", "k_proj")}
    assert len(rotated) == 4
    assert {tensor.pair_rows for name, tensor in tensors.items() if name in rotated} == {pair_rows}
    assert {tensor.pair_rows for name, tensor in tensors.items() if name not in rotated} == {0}
