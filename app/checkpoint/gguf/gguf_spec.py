"""Reads the metadata of GGUF files into a `ModelSpec`, and rejects unsupported models by the name of the key or tensor.

Without torch, so that an unsupported model is rejected before slow imports.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from app.checkpoint.checkpoint_folder import rejected
from app.checkpoint.fields import Fields
from app.checkpoint.gguf.gguf_experts import (
    COUNT,
    add_granite_moe,
    add_mixtral,
    add_qwen2_moe,
    add_qwen3_moe,
    check_expert_names,
)
from app.checkpoint.gguf.gguf_extras import (
    CAPS,
    MULTIPLIERS,
    QUERY_KEYS,
    Extras,
    add_gemma,
    add_gemma_2,
    add_gemma_3,
    add_granite,
    add_ministral,
    add_olmo_3,
    no_extras,
)
from app.checkpoint.gguf.gguf_files import GgufFiles
from app.checkpoint.gguf.gguf_layers import (
    WINDOW_PATTERN,
    SplitRopes,
    local_ropes,
    make_layers,
    read_windows,
    same_ropes,
    unscaled_ropes,
    windowed_ropes_only,
)
from app.checkpoint.gguf.gguf_metadata import GgufMetadata, decimal
from app.checkpoint.gguf.gguf_names import (
    EXPERT_NAMES,
    GATE_UP_NAMES,
    NORMS_AFTER,
    NORMS_BEFORE,
    NORMS_BEFORE_SEED,
    NORMS_BOTH,
    stored_name,
)
from app.checkpoint.gguf.gguf_rope import (
    LONG_FACTORS,
    ROPE_FREQS,
    SHORT_FACTORS,
    read_gguf_longrope,
    read_gguf_partial_rope,
    read_gguf_rope,
)
from app.checkpoint.spec import NO_ROPE, BlockNorms, ModelSpec, QKNorm
from app.checkpoint.specs.phi3 import PHI3_NAMES
from app.checkpoint.stored_tensor import StoredTensor
from app.checkpoint.tensor_names import TensorNames, find_tensors
from app.checkpoint.tensor_types import ADVICE, DTYPES
from app.contract.errors import InvalidValue
from app.contract.requests import PoolingKind
from app.contract.sampling_params import SamplingParams

MAX_VOCABULARY = 2**20
_SHARED_GATE = ".ffn_gate_inp_shexp.weight"
_ROTATED = ("q_proj", "k_proj")


class GgufFamily(NamedTuple):
    """One value of `general.architecture`: its models, in Hugging Face's words, and `others` that it stands for too.

    With `has_neighbour_pairs` rows of queries and keys are stored so that neighbours are rotated together, instead of
    the halves of a head (llama.cpp's NORM and NEOX). `names` are those of Hugging Face checkpoints: the same tensors
    are fused in both formats. `norms` are the names of a layer's norms, and say where it has them.

    What files do not say: one of `rope_period` layers, the last, has no rotary embedding. Where a window is named, all
    layers have it (`has_window`), but for one of `full_period` layers, the last; `window` is the one that files may
    leave out, and `split_ropes` says how the two kinds of layers turn. `extras` adds the numbers of the family, from
    `keys` that others must not have.
    """

    architecture: str
    has_neighbour_pairs: bool
    others: tuple[str, ...] = ()
    qkv_bias: bool = False
    qk_norm: QKNorm = QKNorm.NONE
    norms: Mapping[str, str] = NORMS_BEFORE
    has_window: bool = False
    full_period: int = 0
    window: int = 0
    split_ropes: SplitRopes = same_ropes
    has_longrope: bool = False
    has_partial_rope: bool = False
    rope_period: int | None = None
    names: TensorNames = TensorNames()
    keys: tuple[str, ...] = ()
    extras: Extras = no_extras


GGUF_FAMILIES = {
    "llama": GgufFamily(
        "LlamaForCausalLM", has_neighbour_pairs=True, has_window=True,
        others=("MistralForCausalLM", "MixtralForCausalLM"), names=EXPERT_NAMES, keys=(COUNT,), extras=add_mixtral,
    ),
    "qwen2": GgufFamily("Qwen2ForCausalLM", has_neighbour_pairs=False, qkv_bias=True),
    "qwen3": GgufFamily("Qwen3ForCausalLM", has_neighbour_pairs=False, qk_norm=QKNorm.HEADS),
    "qwen2moe": GgufFamily(
        "Qwen2MoeForCausalLM", has_neighbour_pairs=False, qkv_bias=True, names=EXPERT_NAMES, keys=(COUNT,),
        extras=add_qwen2_moe,
    ),
    "qwen3moe": GgufFamily(
        "Qwen3MoeForCausalLM", has_neighbour_pairs=False, qk_norm=QKNorm.HEADS, names=EXPERT_NAMES, keys=(COUNT,),
        extras=add_qwen3_moe,
    ),
    "phi3": GgufFamily(
        "Phi3ForCausalLM", has_neighbour_pairs=False, has_window=True, has_longrope=True, names=PHI3_NAMES
    ),  # Phi 4 too
    "smollm3": GgufFamily("SmolLM3ForCausalLM", has_neighbour_pairs=True, rope_period=4),
    "granite": GgufFamily(
        "GraniteForCausalLM", has_neighbour_pairs=True, others=("GraniteMoeHybridForCausalLM",), keys=MULTIPLIERS,
        extras=add_granite,
    ),
    "granitemoe": GgufFamily(
        "GraniteMoeForCausalLM", has_neighbour_pairs=True, names=EXPERT_NAMES, keys=(*MULTIPLIERS, COUNT),
        others=("GraniteMoeSharedForCausalLM", "GraniteMoeHybridForCausalLM"), extras=add_granite_moe,
    ),
    "gemma": GgufFamily("GemmaForCausalLM", has_neighbour_pairs=False, extras=add_gemma),
    "gemma2": GgufFamily(
        "Gemma2ForCausalLM", has_neighbour_pairs=False, norms=NORMS_BOTH, has_window=True, full_period=2, window=4096,
        keys=CAPS, extras=add_gemma_2,
    ),
    "gemma3": GgufFamily(
        "Gemma3ForCausalLM", has_neighbour_pairs=False, qk_norm=QKNorm.HEADS, norms=NORMS_BOTH, has_window=True,
        full_period=6, split_ropes=local_ropes, keys=CAPS[1:], extras=add_gemma_3,
    ),
    "olmo2": GgufFamily(
        "Olmo2ForCausalLM", has_neighbour_pairs=False, qk_norm=QKNorm.WHOLE, norms=NORMS_AFTER, has_window=True,
        full_period=4, split_ropes=unscaled_ropes, others=("Olmo3ForCausalLM",), extras=add_olmo_3,
    ),
    "glm4": GgufFamily(
        "Glm4ForCausalLM", has_neighbour_pairs=True, norms=NORMS_BOTH, has_partial_rope=True, names=GATE_UP_NAMES
    ),
    "seed_oss": GgufFamily("SeedOssForCausalLM", has_neighbour_pairs=False, norms=NORMS_BEFORE_SEED),
    "exaone4": GgufFamily(
        "Exaone4ForCausalLM", has_neighbour_pairs=False, qk_norm=QKNorm.HEADS, norms=NORMS_AFTER, has_window=True,
        full_period=4, split_ropes=windowed_ropes_only,
    ),
    "mistral3": GgufFamily(
        "Ministral3ForCausalLM", has_neighbour_pairs=True, has_window=True,
        others=("Mistral3ForConditionalGeneration",), keys=QUERY_KEYS, extras=add_ministral,
    ),
}  # fmt: skip

# By the numbers of llama.cpp; 0 is none, 2 the first token, 4 a ranker's score.
_POOLINGS = {1: PoolingKind.MEAN, 3: PoolingKind.LAST}
_DTYPES = {stored: dtype for dtype, stored in DTYPES.items()}
# Keys that change what is computed; 0 is the same as none.
_UNSUPPORTED = (
    COUNT, "attention.clamp_kqv", "attention.max_alibi_bias", "attention.shared_kv_layers",
    "nextn_predict_layers", "rope.dimension_sections", *CAPS, *MULTIPLIERS, *QUERY_KEYS,
)  # fmt: skip
# Tokens that end an answer by their text, as in llama.cpp: many files name only one of them by its id.
_END_TOKENS = frozenset((
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>",
    "<|endoftext|>", "<|eom_id|>", "<EOT>", "_<EOT>", "<|end_of_text|>", "<end_of_utterance>", "<eos>", "<turn|>",
    "<|tool_response>", "<|observation|>",
))  # fmt: skip
END_IDS = ("eos_token_id", "eot_token_id", "eom_token_id")
"""The keys in tokenizer.ggml.* of the ids after which an answer ends."""
_SAMPLING = {
    "temperature": "temp", "top_p": "top_p", "top_k": "top_k", "min_p": "min_p", "repetition_penalty": "penalty_repeat",
}  # fmt: skip


def read_gguf_spec(files: GgufFiles, dtype: str = "auto", max_model_len: int | None = None) -> ModelSpec:
    """Read the spec of a model.

    With `dtype` auto quantized files are decoded to bfloat16, and others keep their type. `max_model_len` is the
    setting.

    Raises:
        ModelRefused: the architecture or one of its features is not supported.
    """
    family = _family_of(files.metadata)
    return _read_metadata(files, family, _dtype(files) if dtype == "auto" else dtype, max_model_len)


def read_gguf_pooling(metadata: GgufMetadata) -> PoolingKind:
    """Return how embeddings are pooled by default: as the file says, or else the mean.

    Raises:
        ModelRefused: in another way than by the mean or the last token.
    """
    fields = _model_fields(metadata, _family_of(metadata))
    kind = fields.integer("pooling_type", 1, low=0)
    if kind not in _POOLINGS:
        raise fields.rejection("pooling_type", f"is {kind}; supported are 1 (mean) and 3 (last token)")
    return _POOLINGS[kind]


def find_gguf_tensors(spec: ModelSpec, files: GgufFiles) -> dict[str, StoredTensor]:
    """Return where each tensor of `ModelSpec.tensor_shapes` is, also one that is a range of rows of a stored one.

    Raises:
        ModelRefused: a tensor is missing, unknown, or has a different shape or an unsupported type.
    """
    for name, tensor in files.tensors.items():
        if not tensor.type.is_supported or (len(tensor.shape) == 1 and tensor.type.is_quantized):
            raise rejected(f"{tensor.file}: {name} has type {tensor.type.name}, which is not supported; {ADVICE}.")
    family, shapes, file = _family_of(files.metadata), spec.tensor_shapes(), files.metadata.file
    if spec.experts is not None:
        check_expert_names(file, files.tensors)
    places = {
        name: rows._replace(name=stored_name(rows.name, family.norms))
        for name, rows in family.names.locate(shapes).items()
    }
    # The one row of a shared expert's gate is a vector in most files, and a matrix in those of newer converters.
    tensors = {
        name: _as_matrix(tensor) if name.endswith(_SHARED_GATE) else tensor for name, tensor in files.tensors.items()
    }
    found = find_tensors(places, shapes, tensors, where=file, described_in="the metadata")
    divisors = {SHORT_FACTORS, LONG_FACTORS} if family.has_longrope else {ROPE_FREQS}
    known = {rows.name for rows in places.values()} | divisors
    for name in files.tensors:
        if name not in known:
            raise rejected(f"{file} contains the tensor {name}, which a {spec.architecture} does not have.")
    if family.has_neighbour_pairs and not family.has_partial_rope:  # that is read by the decoder's order of a head
        found |= {
            name: replace(tensor, pair_rows=spec.head_dim)
            for name, tensor in found.items()
            if name.split(".")[-2] in _ROTATED
        }
    return found


def _as_matrix(tensor: StoredTensor) -> StoredTensor:
    """Return a vector as the one row of a matrix, all else as it is."""
    return replace(tensor, shape=(1, *tensor.shape)) if len(tensor.shape) == 1 else tensor


def _family_of(metadata: GgufMetadata) -> GgufFamily:
    """Return the entry of `GGUF_FAMILIES`.

    Raises:
        ModelRefused: the architecture is not supported.
    """
    name = metadata.fields.get("general.architecture")
    if not isinstance(name, str) or name not in GGUF_FAMILIES:
        raise rejected(
            f"{metadata.file}: general.architecture is {name!r:.80}, which is not supported; supported are "
            f"{', '.join(GGUF_FAMILIES)}."
        )
    return GGUF_FAMILIES[name]


def _read_metadata(files: GgufFiles, family: GgufFamily, dtype: str, max_model_len: int | None) -> ModelSpec:
    metadata, tensors = files.metadata, files.tensors
    fields = _model_fields(metadata, family)
    hidden, heads = fields.integer("embedding_length"), fields.integer("attention.head_count")
    kv_heads = fields.integer("attention.head_count_kv", heads)
    if heads % kv_heads:
        raise fields.rejection("attention.head_count_kv", f"is {kv_heads}; it must divide head_count, {heads}")
    head_dim = fields.integer("attention.key_length", hidden // heads, high=4096)
    if head_dim % 2 or fields.integer("attention.value_length", head_dim) != head_dim:
        raise fields.rejection("attention.key_length", f"is {head_dim}; it must be even and equal to value_length")
    num_layers = fields.integer("block_count", high=10_000)
    if family.has_longrope:
        rope = read_gguf_longrope(fields, tensors, head_dim, max_model_len)
    else:
        rope = (read_gguf_partial_rope if family.has_partial_rope else read_gguf_rope)(fields, tensors, head_dim)
    windows = (
        read_windows(fields, num_layers, family.full_period, family.window)
        if family.has_window
        else (None,) * num_layers
    )
    ropes, layers = make_layers(fields, windows, rope, family.split_ropes)
    context = fields.integer("context_length")
    scaled = int(rope.original_max_position * rope.factor) if rope.kind in ("linear", "yarn") else 0
    vocab_size = _vocab_size(files)
    spec = ModelSpec(
        architecture=family.architecture,
        vocab_size=vocab_size,
        hidden_size=hidden,
        intermediate_size=fields.integer("feed_forward_length"),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        rms_norm_eps=decimal(fields.number("attention.layer_norm_rms_epsilon")),
        ropes=ropes,
        max_position=max(context, scaled),
        tie_word_embeddings="output.weight" not in tensors,
        qkv_bias=family.qkv_bias or "blk.0.attn_q.bias" in tensors,
        o_bias="blk.0.attn_output.bias" in tensors,
        mlp_bias="blk.0.ffn_down.bias" in tensors,
        qk_norm=family.qk_norm,
        layers=layers,
        block_norms=BlockNorms(tuple(family.norms)),
        dtype=dtype,
        eos_token_ids=_read_end_ids(metadata, vocab_size),
        defaults=_read_defaults(metadata),
    )
    spec = family.extras(spec, fields)
    return _without_ropes(spec, family.rope_period) if family.rope_period else spec


def _without_ropes(spec: ModelSpec, period: int) -> ModelSpec:
    """Return the spec with no rotary embedding in each `period`-th layer."""
    layers = [replace(each, rope=int(index % period == 0)) for index, each in enumerate(spec.layers, 1)]
    return replace(spec, ropes=(*spec.ropes, NO_ROPE), layers=tuple(layers))


def _model_fields(metadata: GgufMetadata, family: GgufFamily) -> Fields:
    """Return the keys of the model's architecture, without that prefix; equal values for all layers are one value."""
    prefix = f"{metadata.fields['general.architecture']}."
    found: dict[str, object] = {}
    for key, value in metadata.fields.items():
        if key.startswith(prefix):
            name = key.removeprefix(prefix)
            is_uniform = isinstance(value, tuple) and value and len(set(value)) == 1 and name != WINDOW_PATTERN
            found[name] = value[0] if isinstance(value, tuple) and is_uniform else value
    fields = Fields(found, f"{metadata.file}: {prefix[:-1]}")
    for name in _UNSUPPORTED:
        if found.get(name) and name not in family.keys:
            raise fields.rejection(name, f"is {found[name]!r:.40}; this is not supported")
    if not fields.flag("attention.causal", True):
        raise fields.rejection("attention.causal", "is false; supported are models whose tokens see only those before")
    return fields


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


def _read_defaults(metadata: GgufMetadata) -> Mapping[str, float]:
    """Read the keys general.sampling.*, if there are some."""
    names = {name: f"general.sampling.{key}" for name, key in _SAMPLING.items()}
    given = {name: metadata.fields[key] for name, key in names.items() if key in metadata.fields}
    values: dict[str, Any] = {}
    for name, value in given.items():
        values[name] = decimal(value) if isinstance(value, float) else value
    try:
        SamplingParams(**values)  # it checks the types too
    except InvalidValue as error:
        raise rejected(f"{metadata.file}: general.sampling: {error.message} Take another file.") from None
    return values


def _dtype(files: GgufFiles) -> str:
    types = files.matrix_types
    is_quantized = any(kind.is_quantized for kind in types)
    return "bfloat16" if is_quantized or not types else _DTYPES.get(types[0].name, "bfloat16")
