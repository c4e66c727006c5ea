"""What llama.cpp's number formats cost the same weights: rounding to ggml's types, and to its inputs of products."""

from __future__ import annotations

from collections.abc import Mapping

import gguf
import torch
from torch import Tensor

from app.kernels.cpu.torch_ops import TorchOps
from app.kernels.ops import Weight
from benchmarks.perplexity.weights import Weights

GROUP = 32
_ENDS = ("model.embed_tokens.weight", "lm_head.weight")


def rounded(weights: Mapping[str, Tensor], kind: str, ends: str = "Q8_0") -> Weights:
    """Return the weights with all matrices rounded to a ggml type, embedding and head to another; vectors as they are.

    llama.cpp's 4-bit files keep embedding and head at 6 or 8 bits.
    """
    return {
        name: tensor if tensor.dim() == 1 else _rounded(tensor, ends if name in _ENDS else kind)
        for name, tensor in weights.items()
    }


def _rounded(matrix: Tensor, kind: str) -> Tensor:
    number = gguf.GGMLQuantizationType[kind]
    blocks = gguf.quants.quantize(matrix.float().numpy(), number)
    return torch.from_numpy(gguf.quants.dequantize(blocks, number))


class Q8Ops(TorchOps):
    """The operations with the inputs of matrix products rounded as llama.cpp rounds them for weights in Q8_0."""

    def linear(self, x_TX: Tensor, weight: Weight, *, out: Tensor) -> None:
        super().linear(round_groups(x_TX), weight, out=out)


def round_groups(x_TX: Tensor) -> Tensor:
    """Round float32 numbers to 8 bits, in groups of 32 with one float16 scale each."""
    groups = x_TX.view(*x_TX.shape[:-1], -1, GROUP)
    scales = groups.abs().amax(-1, keepdim=True) / 127
    ratios = torch.where(scales == 0, 0, 1 / scales) * groups
    whole = torch.copysign((ratios.abs() + 0.5).floor(), ratios)
    return (whole * scales.half().float()).view(x_TX.shape)
