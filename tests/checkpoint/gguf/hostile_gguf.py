"""Hostile GGUF files: small ones with one damage each, by its name, and the words by which it is to be rejected."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tests.gguf_writer import ARRAY, BOOL, STRING, U32, entry, gguf_bytes, key, string
from tests.text.gguf_toys import byte_level, sentencepiece

FEW = [key("general.architecture", "llama"), key("llama.block_count", 2)]
ONE = [entry("a.weight", (32, 2))]
DATA = bytes(256)


def typed(kind: int, raw: bytes) -> bytes:
    """A value with its type, for `key`."""
    return struct.pack("<I", kind) + raw


def array(kind: int, count: int, raw: bytes = b"") -> bytes:
    """An array that announces `count` elements."""
    return typed(ARRAY, struct.pack("<IQ", kind, count) + raw)


HOSTILE_HEADERS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "not a GGUF file"),
    "short": (b"GGUF\3\0\0\0" + bytes(8), "not a GGUF file"),
    "magic": (gguf_bytes(FEW, ONE, DATA, start=b"GGML\3\0\0\0"), "not a GGUF file"),
    "version 1": (gguf_bytes(FEW, ONE, DATA, start=b"GGUF\1\0\0\0"), "version 1"),
    "version 4": (gguf_bytes(FEW, ONE, DATA, start=b"GGUF\4\0\0\0"), "version 4"),
    "big endian": (gguf_bytes(FEW, ONE, DATA, start=b"GGUF\0\0\0\3"), "big-endian"),
    "tensors": (gguf_bytes(FEW, ONE, DATA, counts=(65537, 2)), "65537 tensors"),
    "more tensors": (gguf_bytes(FEW, ONE, DATA, counts=(9, 2)), "truncated|name"),
    "keys": (gguf_bytes(FEW, ONE, DATA, counts=(1, 4097)), "4097 keys"),
    "more keys": (gguf_bytes(FEW, ONE, DATA, counts=(1, 9)), "m.gguf"),
    "key twice": (gguf_bytes([FEW[0], FEW[0]], ONE, DATA), "general.architecture twice"),
    "empty key": (gguf_bytes([key("", 1)], ONE, DATA), "not printable"),
    "long key": (gguf_bytes([key("a" * 256, 1)], ONE, DATA), "256 bytes"),
    "key with a line": (gguf_bytes([key("a\nb", 1)], ONE, DATA), "not printable"),
    "key no UTF-8": (gguf_bytes([key(b"\xff", 1)], ONE, DATA), "not UTF-8"),
    "long string": (gguf_bytes([key("a", typed(STRING, struct.pack("<Q", 2**20 + 1)))], ONE, DATA), "1048577 bytes"),
    "string beyond": (gguf_bytes([key("a", typed(STRING, struct.pack("<Q", 2**20)))], ONE, DATA), "truncated"),
    "string no UTF-8": (gguf_bytes([key("a", typed(STRING, string(b"\xc3")))], ONE, DATA), "not UTF-8"),
    "kind": (gguf_bytes([key("a", typed(13, bytes(8)))], ONE, DATA), "unknown type 13"),
    "flag": (gguf_bytes([key("a", typed(BOOL, b"\2"))], ONE, DATA), "neither true nor false"),
    "nested": (gguf_bytes([key("a", array(ARRAY, 1, bytes(12)))], ONE, DATA), "unsupported type 9"),
    "array kind": (gguf_bytes([key("a", array(99, 1, bytes(12)))], ONE, DATA), "unsupported type 99"),
    "array of flags": (gguf_bytes([key("a", array(BOOL, 2, b"\0\3"))], ONE, DATA), "neither true nor false"),
    "long array": (gguf_bytes([key("a", array(U32, 2**21 + 1))], ONE, bytes(2**24)), "2097153 elements"),
    "array beyond": (gguf_bytes([key("a", array(U32, 10**6))], ONE, DATA), "1000000 elements"),
    "texts beyond": (gguf_bytes([key("a", array(STRING, 10**5))], ONE, DATA), "100000 elements"),
    "text in array": (gguf_bytes([key("a", array(STRING, 1, struct.pack("<Q", 2**30)))], ONE, DATA), "bytes"),
    **{
        f"alignment {value!r}": (gguf_bytes([key("general.alignment", value)], ONE, DATA), "power of two")
        for value in (0, 3, 2**17, True, 32.0, "32", [32])
    },
    "tensor twice": (gguf_bytes(FEW, [ONE[0], entry("a.weight", (32, 1), 0, 256)], bytes(512)), "a.weight twice"),
    "long name": (gguf_bytes(FEW, [entry("a" * 64, (32,))], DATA), "64 bytes"),
    "name with a line": (gguf_bytes(FEW, [entry("a\rb", (32,))], DATA), "not printable"),
    "no dimensions": (gguf_bytes(FEW, [entry("a", ())], DATA), "0 dimensions"),
    "5 dimensions": (gguf_bytes(FEW, [entry("a", (1,) * 5)], DATA), "5 dimensions"),
    "2^32 dimensions": (gguf_bytes(FEW, [string("a") + b"\xff" * 4], DATA), "dimensions"),
    "size 0": (gguf_bytes(FEW, [entry("a", (32, 0))], DATA), "impossible shape"),
    "overflow": (gguf_bytes(FEW, [entry("a", (2**32, 2**32))], DATA), "impossible shape"),
    "overflow to little": (gguf_bytes(FEW, [entry("a", (2**63, 2, 1))], DATA), "impossible shape"),
    "type": (gguf_bytes(FEW, [entry("a", (32,), 42)], DATA), "tensor type 42.*Q4_K_M"),
    "removed type": (gguf_bytes(FEW, [entry("a", (32,), 4)], DATA), "tensor type 4"),
    "half a block": (gguf_bytes(FEW, [entry("a", (48,), 2)], DATA), "48 columns.*Q4_0"),
    "offset": (gguf_bytes(FEW, [entry("a", (32,), 0, 8)], DATA), "not a multiple of 32"),
    "offset beyond": (gguf_bytes(FEW, [entry("a", (32,), 0, 2**63)], DATA), "after the end"),
    "data beyond": (gguf_bytes(FEW, [entry("a", (32, 3))], DATA), "ends 128 bytes after the end"),
    "overlap": (gguf_bytes(FEW, [entry("a", (32,)), entry("b", (32,), 0, 96)], DATA), "data of b overlaps"),
    "same place": (gguf_bytes(FEW, [entry("a", (32,)), entry("b", (32,))], DATA), "overlaps"),
}  # fmt: skip


SIZE = 4
FIELDS: dict[str, Any] = {
    "general.architecture": "llama", "llama.block_count": 1, "llama.context_length": 64,
    "llama.embedding_length": SIZE, "llama.feed_forward_length": SIZE, "llama.attention.head_count": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
}  # fmt: skip
_LAYER = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down", "attn_norm", "ffn_norm")


def shapes(num_tokens: int) -> dict[str, tuple[int, ...]]:
    """The tensors of a model of one layer, columns first."""
    matrix, vector = (SIZE, SIZE), (SIZE,)
    layer = {f"blk.0.{name}.weight": vector if name.endswith("norm") else matrix for name in _LAYER}
    ends = (SIZE, num_tokens)
    return {"token_embd.weight": ends, "output_norm.weight": vector, **layer, "output.weight": ends}


def model(
    text: Mapping[str, Any],
    fields: Mapping[str, Any] | None = None,
    tensors: Mapping[str, tuple[Any, ...] | None] | None = None,
    keep: Callable[[str], bool] = lambda name: True,
) -> bytes:
    """A model of one layer with the vocabulary `text`.

    `fields` replace its keys or (None) leave them out, `tensors` do that with entries of its table, given by sizes,
    type and offset; only tensors that `keep` has are in it.
    """
    values = FIELDS | dict(text) | dict(fields or {})
    keys = [key(name, list(value) if isinstance(value, tuple) else value) for name, value in values.items()
            if value is not None]  # fmt: skip
    entries, offset = [], 0
    for name, sizes in shapes(len(text["tokenizer.ggml.tokens"])).items():
        if keep(name):
            given = (tensors or {}).get(name, (sizes,))
            if given is not None:
                entries.append(entry(name, *given) if len(given) == 3 else entry(name, *(*given, 0)[:2], offset))
            offset += -(-4 * int(np.prod(sizes)) // 32) * 32
    return gguf_bytes(keys, entries, bytes(offset))


def minimal() -> bytes:
    """A model of one layer with two tokens that nothing can be built from, in two kilobytes."""
    return model({"tokenizer.ggml.tokens": ("a", "b"), "tokenizer.ggml.eos_token_id": 1})


_NUMBERS = ("block_count", "context_length", "embedding_length", "feed_forward_length", "attention.head_count",
            "attention.layer_norm_rms_epsilon")  # fmt: skip
_OPTIONAL = ("attention.head_count_kv", "attention.key_length", "attention.value_length", "rope.dimension_count",
             "rope.freq_base", "attention.sliding_window")  # fmt: skip
_WRONG = {"a text": "4", "a flag": True, "a list": [4, 5], "negative": -4, "huge": struct.pack("<IQ", 10, 2**63),
          "not a number": float("nan")}  # fmt: skip
METADATA: dict[str, tuple[bytes, str]] = {
    **{f"no {name}": (model(byte_level(), {f"llama.{name}": None}), name) for name in _NUMBERS},
    **{
        f"{name} is {what}": (model(byte_level(), {f"llama.{name}": value}), name)
        for name in (*_NUMBERS, *_OPTIONAL)
        for what, value in _WRONG.items()
    },
    **{
        f"{name} is used": (model(byte_level(), {f"llama.{name}": 2.0}), f"{name} is 2.0; this is not supported")
        for name in ("attention.clamp_kqv", "attention.max_alibi_bias", "attn_logit_softcapping",
                     "final_logit_softcapping", "residual_scale", "logit_scale", "embedding_scale")
    },
    **{
        f"architecture {name!r}": (model(byte_level(), {"general.architecture": name}), words)
        for name, words in (("mamba", "is 'mamba'"), ("granitehybrid", "is 'granitehybrid'"), ("clip", "mmproj"),
                            (7, "is 7"), (None, "is None"), ("a\nb" * 99, "general.architecture is"))
    },
    **{
        f"type {name}": (model(byte_level(), {"general.type": name}), words)
        for name, words in (("adapter", "LoRA"), ("imatrix", "importance"), ("mmproj", "mmproj"))
    },
}  # fmt: skip


def of_family(architecture: str, **fields: Any) -> bytes:
    """A model of another family; names of `fields` have `__` for the dots of their keys."""
    values = {key.replace("llama.", f"{architecture}."): value for key, value in FIELDS.items()}
    given = {f"{architecture}.{key.replace('__', '.')}": value for key, value in fields.items()}
    others: dict[str, Any] = dict.fromkeys(FIELDS, None)
    return model(byte_level(), others | values | {"general.architecture": architecture} | given)


# The key that is wrong, what must stand beside it to be read, and values that are wrong for it alone.
_WINDOW = {"attention__sliding_window": 5}
_YARN = {"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0}
_EXPERTS = {"expert_count": 4, "expert_used_count": 2}
_OF_FAMILIES: tuple[tuple[str, str, dict[str, Any], tuple[object, ...]], ...] = (
    ("gemma", "attention__key_length", {}, (0, 3)),
    ("llama", "expert_count", _EXPERTS, (2.0, 10**6)),
    ("llama", "expert_used_count", _EXPERTS, (0, 5)),
    ("qwen2moe", "expert_count", _EXPERTS, (0,)),
    ("qwen2moe", "expert_shared_feed_forward_length", _EXPERTS, (0,)),
    ("qwen3moe", "expert_feed_forward_length", _EXPERTS, (0, 2.5)),
    ("qwen3moe", "expert_gating_func", _EXPERTS, (2, 3)),
    ("qwen3moe", "leading_dense_block_count", _EXPERTS, ()),
    ("granitemoe", "expert_used_count", _EXPERTS, (5,)),
    ("granitemoe", "expert_group_count", _EXPERTS, (2,)),
    ("granitemoe", "expert_weights_scale", _EXPERTS, (-1.0, float("inf"))),
    ("granite", "residual_scale", {}, (1e-45, 1e-19, 1e19)),
    ("granitemoe", "residual_scale", _EXPERTS, (1e-45, 1e-19)),
    ("granitemoe", "logit_scale", _EXPERTS, (1e-45,)),
    ("gemma2", "attn_logit_softcapping", {}, (-50.0, float("inf"), 1e-45)),
    ("gemma2", "final_logit_softcapping", {}, (-1,)),
    ("gemma2", "attention__sliding_window", {}, (2.5,)),
    ("gemma3", "attention__sliding_window_pattern", _WINDOW, (-1, [True, False], [2], ["a"], [0.5])),
    ("gemma3", "rope__freq_base_swa", _WINDOW, (0.0, 1.0, -1e4)),
    ("gemma3", "final_logit_softcapping", {}, ()),
    ("olmo2", "attention__sliding_window_pattern", _WINDOW, ([False] * 2,)),
    ("olmo2", "rope__scaling__yarn_attn_factor", _YARN, (0.0, -1.0)),
    ("exaone4", "attention__sliding_window", {}, (-5,)),
    ("glm4", "rope__dimension_count", {}, (0, 1, 3, 6)),
    ("mistral3", "attention__temperature_scale", {}, (-0.1, float("inf"))),
    ("mistral3", "rope__scaling__yarn_log_multiplier", _YARN, (-1.0,)),
    ("mistral3", "rope__scaling__original_context_length", {"attention__temperature_scale": 0.1}, (0, -1)),
)  # fmt: skip
METADATA |= {
    f"{architecture}: {name.replace('__', '.')} is {value!r:.40}": (
        of_family(architecture, **beside | {name: value}), name.replace("__", r"\.")
    )
    for architecture, name, beside, values in _OF_FAMILIES
    for value in (*_WRONG.values(), *values)
} | {
    f"{architecture}: {name.replace('__', '.')} is used": (
        of_family(architecture, **{name: value}), f"{name.replace('__', '.')} is .*; this is not supported"
    )
    for architecture, name, value in (
        ("gemma", "attn_logit_softcapping", 50.0), ("gemma", "final_logit_softcapping", 30.0),
        ("gemma2", "attention__temperature_scale", 0.1), ("gemma3", "attn_logit_softcapping", 50.0),
        ("olmo2", "attention__scale", 0.5), ("glm4", "rope__dimension_sections", [1, 1, 0, 0]),
        ("glm4", "nextn_predict_layers", 1), ("exaone4", "nextn_predict_layers", 1),
        ("seed_oss", "expert_count", 8), ("mistral3", "expert_count", 8), ("mistral3", "logit_scale", 2.0),
        # Experts have silu; these families have another activation.
        ("gemma", "expert_count", 8), ("gemma2", "expert_count", 8), ("gemma3", "expert_count", 8),
    )
}  # fmt: skip

_TENSORS = tuple(shapes(2))
_NUM_TOKENS = len(byte_level()["tokenizer.ggml.tokens"])  # type: ignore[arg-type]
TENSORS: dict[str, tuple[bytes, str]] = {
    **{f"without {name}": (model(byte_level(), tensors={name: None}), "lacks the tensor") for name in _TENSORS
       if name != "output.weight"},
    **{f"other shape of {name}": (model(byte_level(), tensors={name: ((1,),)}), "shape|rows")
       for name in _TENSORS},
    **{f"{name} beyond the end": (model(byte_level(), tensors={name: (shapes(_NUM_TOKENS)[name], 0, 2**40)}),
       "after the end") for name in _TENSORS},
    **{f"{name} is IQ1_S": (model(byte_level(), tensors={name: ((256,), 19)}), "IQ1_S|overlaps|256 rows")
       for name in ("token_embd.weight", "output.weight")},
    **{f"{name} is in the place of another": (model(byte_level(), tensors={name: (shapes(_NUM_TOKENS)[name], 0, 0)}),
       "overlaps") for name in _TENSORS[1:]},
}  # fmt: skip

_TOKENS, _TYPES = byte_level()["tokenizer.ggml.tokens"], byte_level()["tokenizer.ggml.token_type"]
assert isinstance(_TOKENS, tuple) and isinstance(_TYPES, tuple)
_BYTE_LEVEL: tuple[tuple[str, object], ...] = (
    ("model", "t5"), ("model", None), ("model", 3), ("pre", "chatglm-bpe"), ("pre", None), ("pre", "default"),
    ("tokens", ("",) * _NUM_TOKENS), ("tokens", (_TOKENS[1], *_TOKENS[1:])), ("tokens", (*_TOKENS[1:], "x" * 2000)),
    ("tokens", (7, 8)), ("tokens", "abc"), ("token_type", None), ("token_type", _TYPES[1:]),
    ("token_type", (*_TYPES[1:], 7)), ("token_type", ("1",) * _NUM_TOKENS), ("bos_token_id", 2**30),
    ("bos_token_id", "0"),
    ("eos_token_id", _NUM_TOKENS),
    ("eos_token_id", -1), ("eot_token_id", True), ("unknown_token_id", 2**31), ("add_bos_token", 1),
    ("add_eos_token", "true"), ("merges", None), ("merges", "a b"), ("merges", ("ab",)), ("merges", (" ",)),
    ("merges", ("no such",)), ("merges", (1, 2)),
)  # fmt: skip
_SENTENCEPIECE: tuple[tuple[str, object], ...] = (
    ("scores", None), ("scores", (0.5,)), ("scores", "0.5"), ("add_space_prefix", 1), ("unknown_token_id", 2**20),
)  # fmt: skip
VOCABULARIES: dict[str, tuple[bytes, str]] = {
    f"{make.__name__}: {name} is {value!r:.30}": (
        model(make(), {f"tokenizer.ggml.{name}": value}), "template|rows for" if name == "chat_template" else name
    )
    for make, changes in ((byte_level, _BYTE_LEVEL), (sentencepiece, _SENTENCEPIECE))
    for name, value in changes
} | {
    "template is a number": (model(byte_level(), {"tokenizer.chat_template": 7}), "chat_template is not a text"),
    "template is no Jinja": (model(byte_level(), {"tokenizer.chat_template": "{% if %}"}), "no usable chat template"),
    "65 templates": (
        model(byte_level(), {f"tokenizer.chat_template.{i}": "a" for i in range(65)}), "65 chat templates"
    ),
    "temperature": (model(byte_level(), {"general.sampling.temp": -1.0}), "temperature"),
}  # fmt: skip

_WHOLE = model(byte_level())
CUTS: dict[str, tuple[bytes, str]] = {
    f"cut after {length} bytes": (_WHOLE[:length], "truncated|after the end|not a GGUF file|than the file has")
    for length in (1, 3, 8, 16, 23, 24, 25, 32, 60, 100, 999, 2000, 5000, len(_WHOLE) // 2, len(_WHOLE) - 1)
}


def _part(number: object, count: object, names: str = "", **fields: object) -> bytes:
    values = {"split.no": number, "split.count": count, **fields}
    return model(byte_level(), values, keep=lambda name: name.startswith(names or "none"))


_FIRST, _SECOND = "m-00001-of-00002.gguf", "m-00002-of-00002.gguf"
SPLITS: dict[str, tuple[dict[str, bytes], str]] = {
    "no second part": ({_FIRST: _part(0, 2, "blk")}, f"{_SECOND} is missing|lacks {_SECOND}"),
    "second part is cut": ({_FIRST: _part(0, 2, "blk"), _SECOND: _part(1, 2, "o")[:99]}, "truncated"),
    "second part is empty": ({_FIRST: _part(0, 2, "blk"), _SECOND: b""}, "not a GGUF file"),
    "both are first": ({_FIRST: _part(0, 2, "blk"), _SECOND: _part(0, 2, "o")}, "is not part 2 of 2"),
    "another count": ({_FIRST: _part(0, 2, "blk"), _SECOND: _part(1, 3, "o")}, "is not part 2 of 2"),
    "second part is no part": ({_FIRST: _part(0, 2, "blk"), _SECOND: _WHOLE}, "is not part 2 of 2"),
    "same tensors": ({_FIRST: _part(0, 2, "blk"), _SECOND: _part(1, 2, "blk")}, "second time"),
    "fewer tensors": ({_FIRST: _part(0, 2, "blk"), _SECOND: _part(1, 2, "out")}, "lacks the tensor token_embd"),
    "announced tensors": (
        {_FIRST: _part(0, 2, "blk", **{"split.tensors.count": 99}), _SECOND: _part(1, 2, "o")}, "instead of 99"
    ),
    "announced text": (
        {_FIRST: _part(0, 2, "blk", **{"split.tensors.count": "11"}), _SECOND: _part(1, 2, "o")}, "instead of '11'"
    ),
    "a name without parts": ({"m.gguf": _part(0, 2, "blk")}, "its name does not end in"),
    "a name with other parts": ({"m-00001-of-00001.gguf": _part(0, 2, "blk")}, "its name does not end in"),
    "part 3 of 2": ({"m-00003-of-00002.gguf": _part(2, 2, "blk")}, "lacks m-00001|does not end in"),
    "part 0": ({"m-00000-of-00002.gguf": _part(0, 2, "blk")}, "lacks m-00001|does not end in"),
    "huge count": ({_FIRST: _part(0, 2**31, "blk"), _SECOND: _part(1, 2)}, "split.count is 2147483648"),
    "count is a text": ({_FIRST: _part(0, "2", "blk"), _SECOND: _part(1, 2)}, "split.count is '2'"),
    "9999 parts": ({"m-00001-of-09999.gguf": _part(0, 9999, "blk")}, "m-00002-of-09999.gguf is missing"),
    "99999 parts": ({"m-00001-of-99999.gguf": _part(0, 99999, "blk")}, "split.count is 99999"),
}  # fmt: skip

HOSTILE_FILES: dict[str, tuple[dict[str, bytes], str]] = SPLITS | {
    name: ({"m.gguf": raw}, words)
    for name, (raw, words) in {**HOSTILE_HEADERS, **METADATA, **TENSORS, **VOCABULARIES, **CUTS}.items()
}
"""Files by their names, of which the first is given; and words of the message."""
