"""A small Llama for training; the names of its weights are those of a Hugging Face checkpoint.

Shape suffixes: R=rows of a training batch, T=positions, N=query heads, G=kv heads, H=head dim, D=hidden, V=vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

MAX_POSITIONS = 2048
ROPE_THETA = 10000.0

Cache = list[tuple[Tensor, Tensor]]  # keys and values of each layer, each RGTH


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of the model."""

    vocab_size: int
    hidden: int = 192
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64  # a power of two, whatever the hidden size: kernels like it
    ffn: int = 512
    norm_eps: float = 1e-5


class Norm(nn.Module):
    """RMSNorm."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.weight, self._eps = nn.Parameter(torch.ones(shape.hidden)), shape.norm_eps

    def forward(self, x: Tensor) -> Tensor:
        """Scale `x` to unit root mean square."""
        return functional.rms_norm(x, (x.shape[-1],), self.weight, self._eps)


class Attention(nn.Module):
    """Grouped-query attention with rotary positions."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.q_proj = nn.Linear(shape.hidden, shape.heads * shape.head_dim, bias=False)
        self.k_proj = nn.Linear(shape.hidden, shape.kv_heads * shape.head_dim, bias=False)
        self.v_proj = nn.Linear(shape.hidden, shape.kv_heads * shape.head_dim, bias=False)
        self.o_proj = nn.Linear(shape.heads * shape.head_dim, shape.hidden, bias=False)

    def forward(
        self, x_RTD: Tensor, rotary: tuple[Tensor, Tensor], mask: Tensor, past: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Attend over `past` and `x`; returns the output and the keys and values to keep."""
        shape, (rows, length, _) = self.shape, x_RTD.shape
        q_RNTH = rotate(self.q_proj(x_RTD).view(rows, length, shape.heads, -1).transpose(1, 2), rotary)
        k_RGTH = rotate(self.k_proj(x_RTD).view(rows, length, shape.kv_heads, -1).transpose(1, 2), rotary)
        v_RGTH = self.v_proj(x_RTD).view(rows, length, shape.kv_heads, -1).transpose(1, 2)
        if past is not None:
            k_RGTH, v_RGTH = torch.cat([past[0], k_RGTH], 2), torch.cat([past[1], v_RGTH], 2)
        group = shape.heads // shape.kv_heads
        out_RNTH = functional.scaled_dot_product_attention(
            q_RNTH, k_RGTH.repeat_interleave(group, 1), v_RGTH.repeat_interleave(group, 1), attn_mask=mask
        )
        return self.o_proj(out_RNTH.transpose(1, 2).reshape(rows, length, -1)), (k_RGTH, v_RGTH)


class Mlp(nn.Module):
    """The gated feed-forward part."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.ffn, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.ffn, bias=False)
        self.down_proj = nn.Linear(shape.ffn, shape.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """SiLU(gate) · up, projected down."""
        out: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Layer(nn.Module):
    """Attention and feed-forward, each on the normed residual."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm = Norm(shape)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = Norm(shape)
        self.mlp = Mlp(shape)

    def forward(
        self, x: Tensor, rotary: tuple[Tensor, Tensor], mask: Tensor, past: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """One layer; see `Attention`."""
        out, kept = self.self_attn(self.input_layernorm(x), rotary, mask, past)
        x = x + out
        return x + self.mlp(self.post_attention_layernorm(x)), kept


class Decoder(nn.Module):
    """Embedding, layers and the last norm."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = Norm(shape)


class GuideModel(nn.Module):
    """The whole model with tied embeddings; `state_dict()` is a Hugging Face Llama checkpoint."""

    cos: Tensor
    sin: Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.model = Decoder(shape)
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                nn.init.normal_(weight, std=_initial_std(name, weight))
        frequencies = ROPE_THETA ** (-torch.arange(0, shape.head_dim, 2).float() / shape.head_dim)
        angles = torch.arange(MAX_POSITIONS).float()[:, None] * frequencies
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def hidden(
        self, ids_RT: Tensor, positions_RT: Tensor, mask: Tensor, past: Cache | None = None
    ) -> tuple[Tensor, Cache]:
        """Final hidden states, RTD, and the cache; `mask` (R, 1, T, all positions) is true where attention may look."""
        rotary = self.rotary(positions_RT)
        x = self.model.embed_tokens(ids_RT)
        cache: Cache = []
        for index, layer in enumerate(self.model.layers):
            x, kept = layer(x, rotary, mask, None if past is None else past[index])
            cache.append(kept)
        return self.model.norm(x), cache

    def rotary(self, positions_RT: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines of the positions."""
        return self.cos[positions_RT][:, None], self.sin[positions_RT][:, None]

    @torch.no_grad()
    def scales(self, ids_RT: Tensor, positions_RT: Tensor, mask: Tensor) -> list[Tensor]:
        """What the norms multiply the hidden state by: two in each layer, and the last one; each RT."""
        rotary, x, found = self.rotary(positions_RT), self.model.embed_tokens(ids_RT), []
        for layer in self.model.layers:
            found.append(self._scale(x))
            x = x + layer.self_attn(layer.input_layernorm(x), rotary, mask, None)[0]
            found.append(self._scale(x))
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        return [*found, self._scale(x)]

    def _scale(self, x: Tensor) -> Tensor:
        return (x.square().mean(-1) + self.shape.norm_eps).rsqrt()

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of every token of the vocabulary."""
        return functional.linear(hidden, self.model.embed_tokens.weight)

    @torch.no_grad()
    def generate(self, prompts: list[list[int]], max_tokens: int, end: int) -> list[list[int]]:
        """Continue every prompt greedily until `end` (not part of the result) or `max_tokens`."""
        was_training, longest = self.training, max(map(len, prompts))
        self.eval()
        ids = torch.tensor([[end] * (longest - len(p)) + p for p in prompts])
        is_real = torch.tensor([[False] * (longest - len(p)) + [True] * len(p) for p in prompts])
        positions = (is_real.cumsum(1) - 1).clamp(min=0)
        # Padding stands left; a padding position sees itself, or its softmax would be empty.
        causal = torch.ones(longest, longest, dtype=torch.bool).tril()
        mask = (causal & is_real[:, None, :] | torch.eye(longest, dtype=torch.bool))[:, None]
        hidden, cache = self.hidden(ids, positions, mask)
        outputs: list[list[int]] = [[] for _ in prompts]
        rows = torch.arange(len(prompts))  # the prompts that go on
        for _ in range(max_tokens):
            chosen = self.logits(hidden[:, -1]).argmax(-1)
            goes_on = chosen != end
            rows, chosen = rows[goes_on], chosen[goes_on]
            for row, token in zip(rows.tolist(), chosen.tolist(), strict=True):
                outputs[row].append(token)
            if not len(rows):
                break
            if not goes_on.all():
                positions, is_real = positions[goes_on], is_real[goes_on]
                cache = [(keys[goes_on], values[goes_on]) for keys, values in cache]
            positions = positions[:, -1:] + 1
            is_real = torch.cat([is_real, torch.ones_like(is_real[:, :1])], 1)
            hidden, cache = self.hidden(chosen[:, None], positions, is_real[:, None, None, :], cache)
        self.train(was_training)
        return outputs


def _initial_std(name: str, weight: Tensor) -> float:
    if "embed" in name:
        return 0.02
    into_residual = "o_proj" in name or "down_proj" in name
    return (0.5 if into_residual else 1.0) / math.sqrt(weight.shape[1])


def rotate(x: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
    (first, second), (cos, sin) = x.chunk(2, -1), rotary
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
