"""A model's weights in memory, and the same function on another grid of numbers.

The file is 4-bit already: rounding its weights to 4 bits again would cost next to nothing. So the input channels of
matrices are multiplied by random factors, and what computes the inputs is divided by them: the norm before, the rows of
values, the rows of the up projection. The model computes the same, and no group of its weights lies on a grid any more.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from app.checkpoint.model_files import ModelFiles
from app.checkpoint.spec import ModelSpec
from app.models.file_source import FileSource
from app.models.loader import TensorSource

Weights = dict[str, Tensor]
"""All tensors of a model by the names of `ModelSpec.tensor_shapes`."""

LEAST, MOST = 0.7, 1.4


class MemorySource(TensorSource):
    """A TensorSource for weights in memory."""

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        self._weights = weights

    def read(self, name: str, out: Tensor) -> None:
        out.copy_(self._weights[name])


def read_weights(files: ModelFiles) -> Weights:
    """Read all weights of a model, decoded to float32."""
    weights = {name: torch.empty(shape) for name, shape in files.spec.tensor_shapes().items()}
    with FileSource(files) as source:
        for name, tensor in weights.items():
            source.read(name, tensor)
    return weights


def rescaled(weights: Mapping[str, Tensor], spec: ModelSpec, seed: int = 0) -> Weights:
    """Return other weights that compute the same, but for rounding."""
    generator = torch.Generator().manual_seed(seed)
    result = {name: tensor.clone() for name, tensor in weights.items()}

    def factors(count: int) -> Tensor:
        return torch.empty(count).uniform_(LEAST, MOST, generator=generator)

    def divide_rows(module: str, divisors: Tensor) -> None:
        result[f"{module}.weight"].div_(divisors[:, None])
        if f"{module}.bias" in result:
            result[f"{module}.bias"].div_(divisors)

    for index in range(spec.num_layers):
        layer = f"model.layers.{index}."
        attention, mlp = f"{layer}self_attn.", f"{layer}mlp."
        for norm, readers in (
            ("input_layernorm", [attention + name for name in ("q_proj", "k_proj", "v_proj")]),
            ("post_attention_layernorm", [mlp + name for name in ("gate_proj", "up_proj")]),
        ):
            channels = factors(spec.hidden_size)
            result[f"{layer}{norm}.weight"].div_(channels)
            for reader in readers:
                result[f"{reader}.weight"].mul_(channels)
        values = factors(spec.kv_size)
        divide_rows(f"{attention}v_proj", values)
        # Several query heads read the values of one key head.
        heads = values.view(spec.num_kv_heads, spec.head_dim).repeat_interleave(spec.num_heads // spec.num_kv_heads, 0)
        result[f"{attention}o_proj.weight"].mul_(heads.flatten())
        inner = factors(spec.intermediate_size)
        divide_rows(f"{mlp}up_proj", inner)
        result[f"{mlp}down_proj.weight"].mul_(inner)
    return result
