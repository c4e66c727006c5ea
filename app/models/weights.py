"""The decoder's weights as it uses them: query/key/value and gate/up fused into one product each."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from app.kernels.ops import LinearWeight


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer. `qk_norm` is [N+G, H]: the query norm's weight for each query head, then the key norm's."""

    input_norm: Tensor
    qkv: LinearWeight
    qk_norm: Tensor | None
    o: LinearWeight
    post_norm: Tensor
    gate_up: LinearWeight
    down: LinearWeight


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """The whole decoder; `lm_head` shares the embedding's memory when the model ties them."""

    embedding_VD: Tensor
    layers: tuple[LayerWeights, ...]
    norm: Tensor
    lm_head: LinearWeight
