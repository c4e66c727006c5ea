"""The decoder of all models: families of models are values of `ModelSpec`, not classes.

Every operation is an `Ops` method that writes into the arena, so that the same code is run eagerly, recorded (CPU) and
captured (CUDA graphs).

What a layer adds to the residual may be multiplied by a constant (`residual_multiplier`). The residual is kept divided
by it: only norms read the residual, and a norm gives the same when its epsilon is divided by the constant's square.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from app.checkpoint.spec import Activation, ModelSpec, QKNorm
from app.kernels.ops import Ops, pad_rows
from app.models.expert_rows import ExpertRows
from app.models.weights import DecoderWeights, DenseMlp, ExpertMlp, LayerWeights


@dataclass(frozen=True, slots=True)
class Arena:
    """All activations of a step; the ops write into views of the first rows. Shapes: see kernels/ops.py."""

    hidden_TD: Tensor
    residual_TD: Tensor
    qkv_TX: Tensor
    q_TNH: Tensor
    attended_TNH: Tensor
    gate_up_TX: Tensor
    activated_TF: Tensor
    last_RD: Tensor
    logits_RV: Tensor
    experts: ExpertRows | None

    @property
    def num_bytes(self) -> int:
        """Bytes of all activations, with the gaps after the rows."""
        parts = [getattr(self, field.name) for field in fields(self)]
        tensors = sum(part.untyped_storage().nbytes() for part in parts if isinstance(part, Tensor))
        return tensors + (self.experts.num_bytes if self.experts is not None else 0)

    @classmethod
    def allocate(
        cls,
        spec: ModelSpec,
        max_tokens: int,
        max_logit_rows: int,
        dtype: torch.dtype,
        wide: torch.dtype | None = None,
        queries: torch.dtype | None = None,
        row_gap: int = 0,
        device: torch.device | None = None,
    ) -> Arena:
        """Allocate for steps of up to `max_tokens` token rows and `max_logit_rows` rows of logits (padding added).

        `wide` is the type of the residual and of the query, key and value products, `queries` the type of the queries;
        by default both are `dtype`. At least `row_gap` zeros follow each row.
        """
        num_rows, num_logit_rows = pad_rows(max_tokens), pad_rows(max_logit_rows)

        def stride(width: int) -> int:
            return -(-width // row_gap) * row_gap + row_gap if row_gap else width

        def rows(width: int, dtype: torch.dtype = dtype, count: int = num_rows) -> Tensor:
            return torch.zeros(count, stride(width), dtype=dtype, device=device)[:, :width]

        def heads(dtype: torch.dtype) -> Tensor:
            return rows(spec.q_size, dtype).view(num_rows, spec.num_heads, spec.head_dim)

        hidden_TD, experts = rows(spec.hidden_size), spec.experts
        return cls(
            hidden_TD=hidden_TD,
            residual_TD=rows(spec.hidden_size, wide or dtype),
            qkv_TX=rows(spec.q_size + 2 * spec.kv_size, wide or dtype),
            q_TNH=heads(queries or dtype),
            attended_TNH=heads(dtype),
            gate_up_TX=rows(2 * spec.mlp_width),
            activated_TF=rows(spec.mlp_width),
            last_RD=rows(spec.hidden_size, dtype, num_logit_rows),
            logits_RV=rows(spec.vocab_size, torch.float32, num_logit_rows),
            experts=ExpertRows.allocate(experts, num_rows, stride(experts.width), hidden_TD) if experts else None,
        )

    def first(self, num_rows: int, num_logit_rows: int) -> Arena:
        """Return views of the first rows."""
        return Arena(
            self.hidden_TD[:num_rows],
            self.residual_TD[:num_rows],
            self.qkv_TX[:num_rows],
            self.q_TNH[:num_rows],
            self.attended_TNH[:num_rows],
            self.gate_up_TX[:num_rows],
            self.activated_TF[:num_rows],
            self.last_RD[:num_logit_rows],
            self.logits_RV[:num_logit_rows],
            self.experts.first(num_rows) if self.experts is not None else None,
        )


class Decoder:
    """A decoder-only transformer over a paged KV cache. Engine thread only.

    `ropes` are the tables of the spec's rotary embeddings, and `query_scale_P` what queries are multiplied by at each
    position (float32; None: nothing), see rope.py.
    """

    def __init__(
        self,
        spec: ModelSpec,
        weights: DecoderWeights,
        ropes: Sequence[Tensor],
        ops: Ops,
        query_scale_P: Tensor | None = None,
    ) -> None:
        self.spec, self.weights, self.ropes, self.ops = spec, weights, ropes, ops
        self.query_scale_P = query_scale_P
        self.scale = spec.head_dim**-0.5 if spec.attention_scale is None else spec.attention_scale
        self.embedding_scale = spec.embedding_scale / spec.residual_multiplier
        self.eps = spec.rms_norm_eps / spec.residual_multiplier**2

    def forward(
        self, ids_T: Tensor, logit_rows_R: Tensor, kv_cache: Sequence[tuple[Tensor, Tensor]], arena: Arena
    ) -> Tensor:
        """Compute one step and return the logits [R, V] (float32, in the arena) of the token rows in `logit_rows_R`.

        `kv_cache` holds each layer's keys and values [B, K, G, H]; the rows of `arena` match ids and logit rows.
        `ops.begin_step` has been called for the same rows.
        """
        ops, weights = self.ops, self.weights
        hidden, residual = arena.hidden_TD, arena.residual_TD
        first = weights.layers[0].input_norm
        ops.embed(ids_T, weights.embedding, self.embedding_scale, out=residual)
        if first is None:
            ops.embed(ids_T, weights.embedding, self.embedding_scale, out=hidden)
        else:
            ops.rms_norm(residual, first, self.eps, out=hidden)
        for index, layer in enumerate(weights.layers):
            self._attention(layer, index, kv_cache[index], arena)
            self._add(layer.attention_norm, layer.mlp_input_norm, arena)
            if isinstance(layer.mlp, ExpertMlp):
                self._experts(layer.mlp, arena)
            else:
                self._mlp(layer.mlp, self.spec.intermediate_size, arena)
            is_last = index + 1 == len(weights.layers)
            self._add(layer.mlp_norm, weights.norm if is_last else weights.layers[index + 1].input_norm, arena)
        return self.logits(logit_rows_R, arena)

    def logits(self, logit_rows_R: Tensor, arena: Arena) -> Tensor:
        """Return the logits [R, V] (float32, in the arena) of the arena's last hidden states in these token rows."""
        self.ops.gather_rows(arena.hidden_TD, logit_rows_R, out=arena.last_RD)
        self.ops.logits(arena.last_RD, self.weights.lm_head, out=arena.logits_RV)
        if self.spec.logit_softcap is not None:
            self.ops.softcap(arena.logits_RV, self.spec.logit_softcap, out=arena.logits_RV)
        return arena.logits_RV

    def _add(self, norm: Tensor | None, next_norm: Tensor | None, arena: Arena) -> None:
        """Add hidden, or what `norm` makes of it, to the residual; hidden becomes what the next block reads."""
        hidden = arena.hidden_TD
        if norm is not None:
            self.ops.rms_norm(hidden, norm, self.spec.rms_norm_eps, out=hidden)
        self.ops.add_rms_norm(hidden, arena.residual_TD, next_norm, self.eps, out=hidden)

    def _attention(self, layer: LayerWeights, index: int, cache: tuple[Tensor, Tensor], arena: Arena) -> None:
        """Compute hidden = attention(hidden); hidden is already normalized."""
        ops, spec = self.ops, self.spec
        (keys, values), how = cache, spec.layers[index]
        ops.linear(arena.hidden_TD, layer.qkv, out=arena.qkv_TX)
        norm, eps = layer.qk_norm, spec.rms_norm_eps
        if norm is not None and spec.qk_norm is QKNorm.WHOLE:
            q_TX, k_TX = arena.qkv_TX[:, : spec.q_size], arena.qkv_TX[:, spec.q_size : spec.q_size + spec.kv_size]
            ops.rms_norm(q_TX, norm[: spec.q_size], eps, out=q_TX)
            ops.rms_norm(k_TX, norm[spec.q_size :], eps, out=k_TX)
            norm = None
        ops.qk_norm_rope_kv_write(
            arena.qkv_TX, norm, eps, self.ropes[how.rope], keys, values, self.query_scale_P, out=arena.q_TNH
        )
        ops.paged_attention(
            arena.q_TNH, keys, values, self.scale, how.window, spec.attention_softcap, out=arena.attended_TNH
        )
        ops.linear(arena.attended_TNH.flatten(1), layer.o, out=arena.hidden_TD)

    def _mlp(self, mlp: DenseMlp, width: int, arena: Arena) -> None:
        """Compute hidden = mlp(hidden)."""
        gate_up, activated = arena.gate_up_TX[:, : 2 * width], arena.activated_TF[:, :width]
        self.ops.linear(arena.hidden_TD, mlp.gate_up, out=gate_up)
        gate = self.ops.gelu_mul if self.spec.activation is Activation.GELU_TANH else self.ops.silu_mul
        gate(gate_up, out=activated)
        self.ops.linear(activated, mlp.down, out=arena.hidden_TD)

    def _experts(self, mlp: ExpertMlp, arena: Arena) -> None:
        """Compute hidden = the weighted sum of the experts and the shared one, whose result takes hidden's place."""
        ops, hidden, spec, rows = self.ops, arena.hidden_TD, self.spec.experts, arena.experts
        assert spec is not None and rows is not None
        ops.route(hidden, mlp.router_ED, mlp.correction_E, spec, out=rows.routes)
        ops.expert_gate_up(hidden, rows.routes, mlp.gate_up, out=rows.activated_JF)
        if mlp.shared is not None:
            self._mlp(mlp.shared, spec.shared_width, arena)
        shared = None if mlp.shared is None else hidden
        ops.expert_down(rows.activated_JF, rows.routes, mlp.down, shared, out=hidden)
