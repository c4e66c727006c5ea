"""Small vocabularies as in GGUF metadata, and an oracle for byte-level BPE that shares nothing with `app`.

The oracle has the layouts of the models' tokenizer.json, written out here once more, the expressions of the package
`regex` instead of Oniguruma, and BPE in ten lines.
"""

import itertools
import json
import unicodedata
from functools import cache
from pathlib import Path
from typing import Any

import regex

VECTORS = Path(__file__).parents[1] / "vectors" / "gguf_bpe.json"
SPECIAL = ("<s>", "</s>", "<|im_start|>", "<|im_end|>")
TEXTS = (
    "", " ", "   ", "\n", " \n\n \t x", "a  b   c \r\n d", "Hello, WORLD! it's THEY'RE we'Ll I'D don'T",
    "camelCaseWord HTTPServer iPhone XMLÉcole", "1 12 123 1234 12345 3.14 x86_64 ½ ²³", "Ein schöner Tag, ça va? ÄÖÜ",
    "Привет мир. ЭТО Тест", "你好世界，今天 カタカナ ひらがな 한국어 7月", "e\u0301 a\u0300x cafe\u0301",
    "हिन्दी में ภาษาไทย",
    "🙂👩‍👩‍👧 ok", "path/to/file.py -- #include <a> && || $x += `y`~", "f(x)[0]={'k': \"v\"}//c\n\n\tq", "...!?…“”‘’—",
    "a\u3000b\u00a0c", "     1", "x \n1\n\n 中", "Ａｂｃ１２３！", "tail  ",
)  # fmt: skip
_GPT_2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+"
    r"[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN_2 = _LLAMA_3.replace("{1,3}", "")
_QWEN_35 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)
_O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_TEKKEN = _O200K.replace("(?i:'s|'t|'re|'ve|'m|'ll|'d)?", "").replace("{1,3}", "")
_SEED = _QWEN_2.replace(r" ?[^\s\p{L}\p{N}]+[\r\n]*", r" ?[^\s\p{L}\p{N}\r\n]+")
_V3_WORDS = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"
    r" ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_PUNCTUATION = "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"
_DIGIT = r"\p{N}"
_BYTES = None  # the step that replaces the bytes of a text by characters
# The letters of deepseek-llm are those with an upper or lower case; the texts above have no others outside it.
_CASED = r"\s?[\p{Lu}\p{Ll}\p{Lt}]+"
LAYOUTS: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "glm4", "smaug-bpe", "dbrx"), (_LLAMA_3, _BYTES)),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), (_QWEN_2, _BYTES)),
    "qwen35": (_QWEN_35, _BYTES),
    **dict.fromkeys(("gpt-4o", "llama4"), (_O200K, _BYTES)),
    "tekken": (_TEKKEN, _BYTES),
    "seed-coder": (_SEED, _BYTES),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r"), (_DIGIT, _GPT_2, _BYTES)),
    **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo", "exaone4"), (_GPT_2, _BYTES)),
    "falcon": (r"[\p{P}$+<=>^`|~]+", _GPT_2, _BYTES, r"\p{N}+", "[0-9][0-9][0-9]"),
    "deepseek-llm": (r"[\r\n]", _CASED, _PUNCTUATION, r"\s+$", _CJK, _DIGIT, _BYTES),
    "deepseek-coder": (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, _DIGIT, _BYTES),
    "deepseek-v3": (r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", _V3_WORDS, _BYTES),
}
COMPOSED = ("qwen2", "deepseek-r1-qwen", "qwen35", "command-r", "mpt", "olmo", "exaone4")
WHOLE_WORDS = ("llama-bpe", "llama3", "llama-v3", "glm4", "gpt-4o", "llama4", "tekken")


@cache
def vectors() -> dict[str, Any]:
    """The committed vectors: 500 tokens and their merges, and the ids of `TEXTS` by pre type."""
    found: dict[str, Any] = json.loads(VECTORS.read_text(encoding="utf-8"))
    return found


def byte_level(pre: str = "gpt-2", **changed: object) -> dict[str, object]:
    """Metadata of the 500 tokens for a pre type, without BOS; `changed` are keys after tokenizer.ggml."""
    tokens = tuple(vectors()["tokens"])
    values: dict[str, object] = {
        "model": "gpt2", "pre": pre, "tokens": tokens, "merges": tuple(vectors()["merges"]),
        "token_type": tuple(3 if token in SPECIAL else 1 for token in tokens), "bos_token_id": tokens.index("<s>"),
        "eos_token_id": tokens.index("</s>"), "add_bos_token": False, **changed,
    }  # fmt: skip
    return {f"tokenizer.ggml.{key}": value for key, value in values.items() if value is not None}


def sentencepiece(**changed: object) -> dict[str, object]:
    """Metadata of a small vocabulary of the kind `llama`; `changed` are keys after tokenizer.ggml."""
    words = (
        "▁the", "▁dog", "▁sleeps", "the", "▁do", "▁sl", "eep", "eeps", "▁t", "he", "og", "th", "ee", "ps", "▁d", "▁s",
        "sl", "ep", "do", "▁▁", "▁▁▁", "▁▁▁▁",
    )  # fmt: skip
    letters = sorted({letter for word in words for letter in word} | set("abcxyz.,é"))
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words[::-1], *letters, "<think>"]
    types = [2, 3, 3, *[6] * 256, *[1] * (len(tokens) - 260), 4]
    values: dict[str, object] = {
        "model": "llama", "tokens": tuple(tokens), "token_type": tuple(types), "bos_token_id": 1, "eos_token_id": 2,
        "scores": tuple(-float(index) for index in range(len(tokens))), "unknown_token_id": 0, **changed,
    }  # fmt: skip
    return {f"tokenizer.ggml.{key}": value for key, value in values.items() if value is not None}


def expected_ids(pre: str, text: str) -> list[int]:
    """The ids of a text by the oracle, without special tokens."""
    pieces = [unicodedata.normalize("NFC", text) if pre in COMPOSED else text]
    for step in LAYOUTS[pre]:
        if step is _BYTES:
            pieces = ["".join(_alphabet()[byte] for byte in piece.encode()) for piece in pieces]
        else:
            pieces = [part for piece in pieces for part in _isolate(step, piece)]
    ids = {token: index for index, token in enumerate(vectors()["tokens"])}
    return [ids[token] for piece in pieces for token in _merged(piece, ids, whole=pre in WHOLE_WORDS)]


def _isolate(pattern: str, text: str) -> list[str]:
    parts, position = [], 0
    for match in regex.finditer(pattern, text):
        parts += [text[position : match.start()], match[0]]
        position = match.end()
    return [part for part in [*parts, text[position:]] if part]


def _merged(word: str, ids: dict[str, int], *, whole: bool) -> list[str]:
    if whole and word in ids:
        return [word]
    ranks = {merge: rank for rank, merge in enumerate(vectors()["merges"])}
    parts = list(word)
    while True:
        found = [(ranks.get(f"{a} {b}", len(ranks)), i) for i, (a, b) in enumerate(itertools.pairwise(parts))]
        rank, index = min(found, default=(len(ranks), 0))
        if rank == len(ranks):
            return parts
        parts[index : index + 2] = ["".join(parts[index : index + 2])]


@cache
def _alphabet() -> list[str]:
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]
