"""The default pooling of a model's embeddings."""

import json
from dataclasses import replace

import pytest

from app.checkpoint.gguf.gguf_files import GgufFiles
from app.checkpoint.inspection import open_files
from app.checkpoint.pooling_config import default_pooling
from app.contract.errors import ModelRefused
from app.contract.requests import PoolingKind
from tests.checkpoints import tiny
from tests.gguf_writer import tiny_gguf


@pytest.fixture
def folder(tmp_path):
    for file in tiny("Llama").iterdir():
        (tmp_path / file.name).symlink_to(file)
    return tmp_path


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        (None, PoolingKind.MEAN),
        ({"pooling_mode_mean_tokens": True}, PoolingKind.MEAN),
        ({"pooling_mode_lasttoken": True}, PoolingKind.LAST),
        ({"pooling_mode_lasttoken": "yes"}, PoolingKind.MEAN),
    ],
)
def test_the_last_token_is_pooled_only_if_the_model_says_so(folder, config, kind):
    if config is not None:
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling/config.json").write_text(json.dumps(config))
    assert default_pooling(open_files(folder, with_weights=False)) is kind


def test_a_damaged_file_is_refused_by_name(folder):
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text("{")
    with pytest.raises(ModelRefused, match="1_Pooling"):
        default_pooling(open_files(folder, with_weights=False))


@pytest.mark.parametrize(("number", "kind"), [(None, PoolingKind.MEAN), (1, PoolingKind.MEAN), (3, PoolingKind.LAST)])
def test_a_gguf_file_says_how_to_pool(tmp_path, number, kind):
    """Qwen3-Embedding says 3."""
    files = GgufFiles.open(tiny_gguf(tmp_path / "m.gguf", "Qwen3"))
    fields = dict(files.metadata.fields) | ({} if number is None else {"qwen3.pooling_type": number})
    assert default_pooling(replace(files, metadata=replace(files.metadata, fields=fields))) is kind
