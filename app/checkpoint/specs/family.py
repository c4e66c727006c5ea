"""What a family of models is to the registry: a reader of its config.json, and the names of its tensors."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from app.checkpoint.fields import Fields
from app.checkpoint.spec import ModelSpec
from app.checkpoint.tensor_names import TensorNames


class Given(NamedTuple):
    """The values that a spec depends on besides the fields of config.json that describe the shape of the model."""

    dtype: str
    eos_token_ids: tuple[int, ...]
    defaults: Mapping[str, float]
    max_model_len: int | None = None


class Reader(Protocol):
    """Reads the config.json of one architecture."""

    def __call__(self, fields: Fields, given: Given) -> ModelSpec:
        """Return the spec; raises ModelRefused for what is not supported."""


class Family(NamedTuple):
    """One architecture.

    `title` is what people call its models. With `ignores_code` the checkpoints name code of their own (`auto_map`)
    which is not needed: transformers has the same model. `defaults` are transformers' values of fields that a
    config.json may lack. With `is_text_only` the model has a part for images beside the text model, which alone is
    loaded, and which `text_config` describes.
    """

    title: str
    read: Reader
    names: TensorNames = TensorNames()
    ignores_code: bool = False
    defaults: Mapping[str, Any] = MappingProxyType({})
    is_text_only: bool = False
