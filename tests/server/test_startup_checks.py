"""The checks of a model before the server listens; test_serve.py has the damaged folders."""

import json
import shutil

import pytest

from app.checkpoint.inspection import inspect
from app.checkpoint.names import resolve
from app.config.settings import make_config
from app.contract.errors import ConfigurationError, ModelRefused
from app.text.entry.frontend import TextFrontend


def check(**values: object):
    """Check a model configuration; returns the model's shape."""
    settings = make_config(values).model
    files = inspect(settings)
    text = TextFrontend.load(settings, files.text)
    assert text.tokenizer.vocab_size <= files.spec.vocab_size
    return files.spec


def test_the_embedded_model_passes_the_checks():
    assert check().architecture == "LlamaForCausalLM"


def test_dummy_weights_need_only_a_config(tmp_path):
    shutil.copy(resolve("guide") / "config.json", tmp_path)
    assert check(model=str(tmp_path), load_format="dummy").tensor_shapes() == check().tensor_shapes()
    with pytest.raises(ModelRefused, match="safetensors"):
        check(model=str(tmp_path))


def test_a_context_beyond_the_models_is_rejected():
    with pytest.raises(ModelRefused, match="max_model_len"):
        check(max_model_len=10**6)


def test_a_missing_chat_template_is_rejected(tmp_path):
    with pytest.raises(ConfigurationError, match=r"nowhere\.jinja"):
        check(chat_template=str(tmp_path / "nowhere.jinja"))


def test_an_invalid_chat_template_is_rejected(tmp_path):
    file = tmp_path / "template.jinja"
    file.write_text("{% if %}")
    with pytest.raises(ConfigurationError, match="line 1"):
        check(chat_template=str(file))


def test_weights_of_another_shape_are_rejected(tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(resolve("guide"), folder)
    fields = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(fields | {"num_hidden_layers": 9}))
    with pytest.raises(ModelRefused, match=r"model\.layers"):
        check(model=str(folder))
