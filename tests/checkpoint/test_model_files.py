"""What is said of the types of a model's matrices, whatever the format."""

from dataclasses import replace

import pytest

from app.checkpoint.inspection import inspect
from app.checkpoint.model_files import GGUF, ModelFiles
from app.checkpoint.tensor_types import TENSOR_TYPES
from app.config.settings import ModelConfig
from tests.checkpoints import tiny

TYPES = {kind.name: kind for kind in TENSOR_TYPES.values()}
NAME = "model.layers.0.mlp.up_proj.weight"


@pytest.fixture
def folder() -> ModelFiles:
    """The files of a folder."""
    return inspect(ModelConfig(model=str(tiny())))


def of_types(files: ModelFiles, *names: str) -> ModelFiles:
    """The same, as if it were a GGUF file with matrices of these types; NAME has the first."""
    kinds = tuple(TYPES[name] for name in names)
    assert files.tensors is not None
    tensors = dict(files.tensors) | {NAME: replace(files.tensors[NAME], type=kinds[0])}
    return replace(files, format=GGUF, matrix_types=kinds, tensors=tensors)


def test_a_folder_has_no_quantized_weights(folder: ModelFiles):
    assert (folder.summary, folder.quantization, folder.stored_type(NAME)) == ("safetensors", None, None)


def test_types_of_a_file_are_named_and_used_as_they_are_stored(folder: ModelFiles):
    files = of_types(folder, "Q8_0", "F32")
    assert (files.summary, files.quantization) == ("GGUF, Q8_0 and F32", "Q8_0, F32")
    assert files.stored_type(NAME) == TYPES["Q8_0"]
    assert files.stored_type("model.norm.weight") is None


def test_numbers_are_not_quantized(folder: ModelFiles):
    files = of_types(folder, "F16")
    assert (files.summary, files.quantization, files.stored_type(NAME)) == ("GGUF, F16", None, None)


def test_nothing_is_stored_without_weights(folder: ModelFiles):
    assert replace(folder, tensors=None).stored_type(NAME) is None
