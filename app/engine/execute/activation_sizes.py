"""The bytes of what steps need beside weights and KV cache, by the shape of a model. Without torch.

They are those of the largest step that the settings allow. Tests compare them with what is allocated.
"""

from __future__ import annotations

from app.checkpoint.expert_sizes import pair_bytes
from app.checkpoint.quantized_rows import quantized_bytes
from app.checkpoint.sizes import FLOAT_BYTES, StoredType, item_bytes
from app.checkpoint.spec import ModelSpec
from app.config.settings import Config
from app.engine.schedule.limits import max_logit_rows

_ROW_MULTIPLE = 8  # as in app/kernels/ops.py, which needs torch
_ROW_GAP = 32  # as in cpu/backend.py, which needs torch
_WORD_BYTES = 4


def host_activation_bytes(
    config: Config, spec: ModelSpec, quantization: str | None, stored_type: StoredType, *, has_kernels: bool
) -> int:
    """Return all bytes that steps on a CPU need; `quantization` and `stored_type` are those of `quantized_bytes`."""
    arena = activation_bytes(config, spec, has_kernels=has_kernels) + mask_bytes(config, spec)
    return arena + kernel_bytes(config, spec, quantization, stored_type, has_kernels=has_kernels)


def activation_bytes(config: Config, spec: ModelSpec, *, has_kernels: bool) -> int:
    """Return the bytes of the arena: activations and logits."""
    is_short = spec.dtype == "bfloat16"
    narrow = wide = queries = item_bytes(spec)
    if has_kernels:
        wide = FLOAT_BYTES
        narrow = 2 if is_short else FLOAT_BYTES
        is_int8 = config.cache.kv_cache_dtype == "int8"
        queries = narrow if is_int8 else 2 if is_short else FLOAT_BYTES

    def row(width: int, num_bytes: int) -> int:
        return num_bytes * (-(-width // _ROW_GAP) * _ROW_GAP + _ROW_GAP if has_kernels else width)

    d, q = spec.hidden_size, spec.q_size
    width = row(d, narrow) + row(d, wide) + row(q + 2 * spec.kv_size, wide) + row(q, queries) + row(q, narrow)
    width += row(2 * spec.mlp_width, narrow) + row(spec.mlp_width, narrow)
    starts = 0
    if spec.experts is not None:
        # Besides activations: numbers and scores of the chosen, pairs by expert, the shared one's factor.
        width += spec.experts.per_token * (row(spec.experts.width, narrow) + 3 * _WORD_BYTES) + FLOAT_BYTES
        starts = (spec.experts.count + 1) * _WORD_BYTES
    logits = num_logit_rows(config) * (row(d, narrow) + row(spec.vocab_size, FLOAT_BYTES))
    return starts + _num_rows(config) * width + logits


def kernel_bytes(
    config: Config, spec: ModelSpec, quantization: str | None, stored_type: StoredType, *, has_kernels: bool
) -> int:
    """Return the bytes of the copies of activations that kernels of a CPU multiply: quantized, and for experts."""
    num_rows = _num_rows(config)
    quantized = quantized_bytes(spec, quantization, stored_type, num_rows, num_logit_rows(config))
    narrow = 2 if spec.dtype == "bfloat16" else FLOAT_BYTES
    return quantized + (pair_bytes(spec, num_rows, narrow) if has_kernels else 0)


def mask_bytes(config: Config, spec: ModelSpec) -> int:
    """Return the bytes of one step's masks of grammars: a bit for each token and logit row."""
    num_words = spec.vocab_size // 32 + 1
    return num_logit_rows(config) * (num_words + 1) * _WORD_BYTES


def num_logit_rows(config: Config) -> int:
    """Return the rows of logits, padded."""
    return _padded(max_logit_rows(config.scheduler))


def _num_rows(config: Config) -> int:
    return _padded(config.scheduler.max_num_batched_tokens)


def _padded(num_rows: int) -> int:
    return -(-num_rows // _ROW_MULTIPLE) * _ROW_MULTIPLE
