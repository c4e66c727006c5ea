"""A model in the folder of a checkpoint: how its embeddings are pooled by default, and how long its answers may be."""

import json

import pytest

from app.checkpoint.folder_model import read_folder
from app.config.settings import ModelConfig
from app.contract.errors import ModelRefused
from app.contract.requests import PoolingKind
from tests.checkpoints import tiny


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
    assert read_folder(folder, ModelConfig()).pooling is kind


def test_a_damaged_file_is_refused_by_name(folder):
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text("{")
    with pytest.raises(ModelRefused, match="1_Pooling"):
        read_folder(folder, ModelConfig())


@pytest.mark.parametrize(
    ("config", "tokens"), [({}, None), ({"max_new_tokens": None}, None), ({"max_new_tokens": 1024}, 1024)]
)
def test_answers_may_be_as_long_as_the_models_files_say(folder, config, tokens):
    write_generation(folder, config)
    assert read_folder(folder, ModelConfig()).answer_tokens == tokens


@pytest.mark.parametrize("given", [0, -1, 1.5, "10", True])
def test_a_length_of_answers_that_is_none_is_refused_with_its_file(folder, given):
    write_generation(folder, {"max_new_tokens": given})
    with pytest.raises(ModelRefused, match=r"generation_config.json: max_new_tokens is .*; it must be a whole number"):
        read_folder(folder, ModelConfig())


def write_generation(folder, config):
    (folder / "generation_config.json").unlink(missing_ok=True)
    (folder / "generation_config.json").write_text(json.dumps(config))
