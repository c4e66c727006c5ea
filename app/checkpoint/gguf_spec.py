"""Reads the metadata of GGUF files into a `ModelSpec`, and rejects unsupported models by the name of the key or tensor.

Without torch, so that an unsupported model is rejected before slow imports.
"""

from __future__ import annotations

import math
import struct
from typing import NamedTuple

from app.checkpoint.fields import Fields
from app.checkpoint.folder import rejected
from app.checkpoint.gguf_files import GgufFiles, GgufMetadata
from app.checkpoint.gguf_header import GgufTensor
from app.checkpoint.gguf_names import stored_name
from app.checkpoint.spec import LayerSpec, ModelSpec, RopeSpec
from app.checkpoint.tensor_types import ADVICE
from app.contract.errors import InvalidValue
from app.contract.sampling_params import SamplingDefaults, SamplingParams

MAX_VOCABULARY = 2**20
ROPE_FREQS = "rope_freqs.weight"


class Family(NamedTuple):
    """One value of `general.architecture`.

    With `has_neighbour_pairs` rows of queries and keys are stored so that neighbours are rotated together, instead of
    the halves of a head (llama.cpp's NORM and NEOX).
    """

    architecture: str
    has_neighbour_pairs: bool
    qkv_bias: bool = False
    qk_norm: bool = False


GGUF_SPECS = {
    "llama": Family("LlamaForCausalLM", has_neighbour_pairs=True),  # Mistral too
    "qwen2": Family("Qwen2ForCausalLM", has_neighbour_pairs=False, qkv_bias=True),
    "qwen3": Family("Qwen3ForCausalLM", has_neighbour_pairs=False, qk_norm=True),
}

_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
# Keys that change what is computed; 0 is the same as none.
_UNSUPPORTED = (
    "expert_count", "attention.scale", "attention.clamp_kqv", "attention.max_alibi_bias", "attention.temperature_scale",
    "attention.shared_kv_layers", "attn_logit_softcapping", "final_logit_softcapping", "embedding_scale",
    "residual_scale", "logit_scale", "rope.scaling.yarn_log_multiplier",
)  # fmt: skip
# Tokens that end an answer by their text, as in llama.cpp: many files name only one of them by its id.
_END_TOKENS = frozenset((
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>",
    "<|endoftext|>", "<|eom_id|>", "<EOT>", "_<EOT>", "<|end_of_text|>", "<end_of_utterance>", "<eos>", "<turn|>",
    "<|tool_response>",
))  # fmt: skip
END_IDS = ("eos_token_id", "eot_token_id", "eom_token_id")
"""The keys in tokenizer.ggml.* of the ids after which an answer ends."""
_SAMPLING = {
    "temperature": "temp", "top_p": "top_p", "top_k": "top_k", "min_p": "min_p", "repetition_penalty": "penalty_repeat",
}  # fmt: skip


def read_gguf_spec(files: GgufFiles, dtype: str = "auto") -> ModelSpec:
    """Read the spec of a model, and compare names, shapes and types of all its tensors with it.

    With `dtype` auto quantized files are decoded to bfloat16, and others keep their type.

    Raises:
        ModelRefused: the architecture or one of its features is not supported; or a tensor is missing, unknown, or has
            a different shape or an unsupported type.
    """
    family = family_of(files.metadata)
    spec = _read_metadata(files, family, _dtype(files) if dtype == "auto" else dtype)
    _check_tensors(spec, files)
    return spec


def family_of(metadata: GgufMetadata) -> Family:
    """Return the entry of `GGUF_SPECS`.

    Raises:
        ModelRefused: the architecture is not supported.
    """
    name = metadata.fields.get("general.architecture")
    if not isinstance(name, str) or name not in GGUF_SPECS:
        raise rejected(
            f"{metadata.file}: general.architecture is {name!r:.80}, which is not supported; supported are "
            f"{', '.join(GGUF_SPECS)}."
        )
    return GGUF_SPECS[name]


def _read_metadata(files: GgufFiles, family: Family, dtype: str) -> ModelSpec:
    metadata, tensors = files.metadata, files.tensors
    fields = _model_fields(metadata)
    hidden, heads = fields.integer("embedding_length"), fields.integer("attention.head_count")
    kv_heads = fields.integer("attention.head_count_kv", heads)
    if heads % kv_heads:
        raise fields.rejection("attention.head_count_kv", f"is {kv_heads}; it must divide head_count, {heads}")
    head_dim = fields.integer("attention.key_length", hidden // heads, high=4096)
    if head_dim % 2 or fields.integer("attention.value_length", head_dim) != head_dim:
        raise fields.rejection("attention.key_length", f"is {head_dim}; it must be even and equal to value_length")
    if fields.integer("rope.dimension_count", head_dim) != head_dim:
        raise fields.rejection("rope.dimension_count", f"is not {head_dim}, the size of a head; this is not supported")
    num_layers = fields.integer("block_count", high=10_000)
    context = fields.integer("context_length")
    rope = _read_rope(fields, context, head_dim, tensors.get(ROPE_FREQS))
    scaled = int(rope.original_max_position * rope.factor) if rope.kind in ("linear", "yarn") else 0
    vocab_size = _vocab_size(files)
    return ModelSpec(
        architecture=family.architecture,
        vocab_size=vocab_size,
        hidden_size=hidden,
        intermediate_size=fields.integer("feed_forward_length"),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        rms_norm_eps=_short(fields.number("attention.layer_norm_rms_epsilon")),
        ropes=(rope,),
        max_position=max(context, scaled),
        tie_word_embeddings="output.weight" not in tensors,
        qkv_bias=family.qkv_bias or "blk.0.attn_q.bias" in tensors,
        o_bias="blk.0.attn_output.bias" in tensors,
        mlp_bias="blk.0.ffn_down.bias" in tensors,
        qk_norm=family.qk_norm,
        layers=(LayerSpec(window=_window(fields, family)),) * num_layers,
        dtype=dtype,
        eos_token_ids=_read_end_ids(metadata, vocab_size),
        defaults=_read_defaults(metadata),
    )


def _model_fields(metadata: GgufMetadata) -> Fields:
    """Return the keys of the model's architecture, without that prefix; equal values for all layers are one value."""
    prefix = f"{metadata.fields['general.architecture']}."
    found: dict[str, object] = {}
    for key, value in metadata.fields.items():
        if key.startswith(prefix):
            is_uniform = isinstance(value, tuple) and value and len(set(value)) == 1
            found[key.removeprefix(prefix)] = value[0] if isinstance(value, tuple) and is_uniform else value
    fields = Fields(found, f"{metadata.file}: {prefix[:-1]}")
    for name in _UNSUPPORTED:
        if found.get(name):
            raise fields.rejection(name, f"is {found[name]!r:.40}; this is not supported")
    return fields


def _read_rope(fields: Fields, context: int, head_dim: int, divisors: GgufTensor | None) -> RopeSpec:
    theta = fields.number("rope.freq_base", 10000.0, above=1.0)
    kind = fields.config.get("rope.scaling.type", "none")
    if kind not in ("none", "linear", "yarn"):
        raise fields.rejection("rope.scaling.type", f"is {kind!r:.40}; supported are none, linear and yarn")
    if divisors is not None:
        if kind != "none":
            raise fields.rejection("rope.scaling.type", f"is {kind}, beside the tensor {ROPE_FREQS}; only one may be")
        return RopeSpec(theta, "divisors", divisors=_read_divisors(divisors, head_dim // 2))
    if kind == "none":
        return RopeSpec(theta)
    original = fields.integer("rope.scaling.original_context_length", context)
    factor = fields.number("rope.scaling.factor", high=2**31 / original)
    if kind == "linear":
        return RopeSpec(theta, kind, factor, original)
    if fields.number("rope.scaling.yarn_ext_factor", 1.0) != 1:
        raise fields.rejection("rope.scaling.yarn_ext_factor", "is not 1; this is not supported")
    attention = fields.number("rope.scaling.attn_factor", 1.0) * fields.number("rope.scaling.yarn_attn_factor", 1.0)
    return RopeSpec(
        theta, kind, factor, original,
        beta_fast=fields.number("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=fields.number("rope.scaling.yarn_beta_slow", 1.0),
        attention_factor=attention * (1.0 if factor <= 1 else 0.1 * math.log(factor) + 1.0),
    )  # fmt: skip


def _read_divisors(tensor: GgufTensor, count: int) -> tuple[float, ...]:
    """Read the divisors of the rotary frequencies: Llama 3's scaling, computed by who wrote the file."""
    if tensor.shape != (count,) or tensor.type.name != "F32":
        raise rejected(
            f"{tensor.file}: {ROPE_FREQS} has type {tensor.type.name} and shape {list(tensor.shape)}; it must be F32 "
            f"and [{count}]."
        )
    with tensor.file.open("rb") as stream:
        stream.seek(tensor.begin)
        raw = stream.read(4 * count)
    values: tuple[float, ...] = struct.unpack(f"<{count}f", raw) if len(raw) == 4 * count else ()
    if not values or not all(0 < value < math.inf for value in values):
        raise rejected(f"{tensor.file}: {ROPE_FREQS} holds other values than positive numbers; download it again.")
    return values


def _window(fields: Fields, family: Family) -> int | None:
    """Return the sliding window of all layers; Qwen's files name one that the models do not use."""
    if family.architecture != "LlamaForCausalLM":
        return None
    return fields.integer("attention.sliding_window", 0, low=0) or None


def _vocab_size(files: GgufFiles) -> int:
    """Return the number of rows of the embedding, which may be more than the tokens."""
    file, embedding = files.metadata.file, files.tensors.get("token_embd.weight")
    if embedding is None:
        raise rejected(f"{file} lacks the tensor token_embd.weight, so it is incomplete; download the model again.")
    num_rows = embedding.shape[0]
    tokens = files.metadata.fields.get("tokenizer.ggml.tokens", ())
    num_tokens = len(tokens) if isinstance(tokens, tuple) else 0
    if not num_tokens <= num_rows <= MAX_VOCABULARY:
        raise rejected(
            f"{file}: token_embd.weight has {num_rows} rows for {num_tokens} tokens; it must have at least as many, "
            f"and at most {MAX_VOCABULARY}."
        )
    return num_rows


def _read_end_ids(metadata: GgufMetadata, vocab_size: int) -> tuple[int, ...]:
    """Return the ids after which an answer ends: those that the file names, and tokens that are known as ends."""
    fields = Fields(metadata.fields, str(metadata.file))
    keys = [f"tokenizer.ggml.{name}" for name in END_IDS]
    found = {fields.integer(key, low=0, high=vocab_size - 1) for key in keys if key in metadata.fields}
    tokens = metadata.fields.get("tokenizer.ggml.tokens", ())
    if isinstance(tokens, tuple):
        ends = {token: index for index, token in enumerate(tokens) if token in _END_TOKENS}
        if "<|return|>" in ends and "<|call|>" in ends:
            ends.pop("<|end|>", None)  # gpt-oss: ends a part of an answer
        found.update(ends.values())
    return tuple(sorted(found))


def _read_defaults(metadata: GgufMetadata) -> SamplingDefaults:
    """Read the keys general.sampling.*, if there are some."""
    names = {name: f"general.sampling.{key}" for name, key in _SAMPLING.items()}
    given = {name: metadata.fields[key] for name, key in names.items() if key in metadata.fields}
    values = {name: _short(value) if isinstance(value, float) else value for name, value in given.items()}
    try:
        SamplingParams(**values)  # type: ignore[arg-type]  # it checks the types too
    except InvalidValue as error:
        raise rejected(f"{metadata.file}: general.sampling: {error.message} Take another file.") from None
    return SamplingDefaults(**values)  # type: ignore[arg-type]


def _check_tensors(spec: ModelSpec, files: GgufFiles) -> None:
    file, wanted = files.metadata.file, {stored_name(name): shape for name, shape in spec.tensor_shapes().items()}
    for name, shape in wanted.items():
        tensor = files.tensors.get(name)
        if tensor is None:
            raise rejected(f"{file} lacks the tensor {name}, so it is incomplete; download the model again.")
        if tensor.shape != shape:
            raise rejected(
                f"{tensor.file}: {name} has shape {list(tensor.shape)}; according to the metadata it must be "
                f"{list(shape)}."
            )
        if not tensor.type.is_supported or (len(shape) == 1 and tensor.type.is_quantized):
            raise rejected(f"{tensor.file}: {name} has type {tensor.type.name}, which is not supported; {ADVICE}.")
    for name in files.tensors.keys() - wanted.keys() - {ROPE_FREQS}:
        raise rejected(f"{file} contains the tensor {name}, which a {spec.architecture} does not have.")


def _dtype(files: GgufFiles) -> str:
    types = files.matrix_types
    return "bfloat16" if files.is_quantized or not types else _DTYPES.get(types[0].name, "bfloat16")


def _short(value: float) -> float:
    """Return the decimal number that was meant by a float32."""
    return float(f"{value:.7g}")
