"""How the words of a text are split before byte-level BPE: one rule for each known `tokenizer.ggml.pre`.

GGUF files name the rule only; the rules are those of the tokenizer.json of the models. llama.cpp's own patterns differ
from them for rare texts, because its regular expressions lack case-insensitive groups and classes of letters.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from tokenizers import Regex, normalizers, pre_tokenizers
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Punctuation, Split

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA_3 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _SPACES
_QWEN_2 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _SPACES
_QWEN_35 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|" + _SPACES
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = r"[^\r\n\p{L}\p{N}]?"
_GPT_4O = (
    f"{_CASED}{_UPPER}*{_LOWER}+{_CONTRACTIONS}?|{_CASED}{_UPPER}+{_LOWER}*{_CONTRACTIONS}?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _SPACES
)
_TEKKEN = f"{_CASED}{_UPPER}*{_LOWER}+|{_CASED}{_UPPER}+{_LOWER}*" r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _SPACES
_SEED = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|" + _SPACES
_DEEPSEEK_V3 = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|" + _SPACES,
)
_CHINESE_KOREAN = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CHINESE_KOREAN)
_CASED_LETTERS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373"
    "\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f"
    "\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77"
    "\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d"
    "\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb"
    "\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128"
    "\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4"
    "\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf"
    "\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
    "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
_DEEPSEEK_LLM = (
    r"[\r\n]",
    f"\\s?[{_CASED_LETTERS}]+",
    "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
    r"(?<!\s)\s+$",  # theirs is \s+$, the same matches in time quadratic in the number of spaces
    _CHINESE_KOREAN,
)


class PreType(NamedTuple):
    """One rule: what splits the words, and what llama.cpp's converter leaves out of the file.

    `ignore_merges`: a word that is a token stays whole. `adds_bos` holds if the file does not say it.
    """

    steps: Callable[[], list[PreTokenizer]]
    is_composed: bool = False
    ignore_merges: bool = False
    adds_bos: bool = False

    def pre_tokenizer(self) -> PreTokenizer:
        """Return a new pre-tokenizer, whose words are made of characters that stand for bytes."""
        return pre_tokenizers.Sequence(self.steps())

    def normalizer(self) -> normalizers.Normalizer | None:
        """Return the normalizer: canonical composition, or none."""
        return normalizers.NFC() if self.is_composed else None


def _split(*patterns: str, has_single_digits: bool = False) -> list[PreTokenizer]:
    """Isolate the matches of each pattern in what those before have left."""
    digits: list[PreTokenizer] = [Digits(individual_digits=True)] if has_single_digits else []
    splits: list[PreTokenizer] = [Split(Regex(pattern), "isolated") for pattern in patterns]
    return [*splits, *digits, ByteLevel(add_prefix_space=False, use_regex=False)]


def _gpt_2() -> list[PreTokenizer]:
    return [ByteLevel(add_prefix_space=False)]


def _single_digits() -> list[PreTokenizer]:
    return [Digits(individual_digits=True), ByteLevel(add_prefix_space=False)]


def _falcon() -> list[PreTokenizer]:
    # The last two see characters that stand for bytes, as in Falcon's tokenizer.json.
    byte_level = ByteLevel(add_prefix_space=False)
    return [Punctuation("contiguous"), byte_level, Digits(), Split(Regex("[0-9][0-9][0-9]"), "isolated")]


_LLAMA_BPE = PreType(partial(_split, _LLAMA_3), ignore_merges=True, adds_bos=True)
_LLAMA_BPE_MERGING = PreType(partial(_split, _LLAMA_3))
_QWEN = PreType(partial(_split, _QWEN_2), is_composed=True)
_O200K = PreType(partial(_split, _GPT_4O), ignore_merges=True)

PRE_TYPES = {
    "llama-bpe": _LLAMA_BPE,
    "llama3": _LLAMA_BPE,
    "llama-v3": _LLAMA_BPE,
    "glm4": PreType(partial(_split, _LLAMA_3), ignore_merges=True),
    "smaug-bpe": _LLAMA_BPE_MERGING,
    "dbrx": _LLAMA_BPE_MERGING,  # Phi 4, OLMo 2 and 3
    "qwen2": _QWEN,
    "deepseek-r1-qwen": _QWEN,
    "qwen35": PreType(partial(_split, _QWEN_35), is_composed=True),
    "gpt-4o": _O200K,  # gpt-oss, Phi 4 mini
    "llama4": _O200K,
    "tekken": PreType(partial(_split, _TEKKEN), ignore_merges=True, adds_bos=True),
    "smollm": PreType(_single_digits),
    "starcoder": PreType(_single_digits),
    "refact": PreType(_single_digits),
    "command-r": PreType(_single_digits, is_composed=True),
    "gpt-2": PreType(_gpt_2),
    "phi-2": PreType(_gpt_2),
    "mpt": PreType(_gpt_2, is_composed=True),
    "olmo": PreType(_gpt_2, is_composed=True),
    # Not compared: llama.cpp, where its publisher added it, has GPT-2's rule; the composition is that of EXAONE 4.5.
    "exaone4": PreType(_gpt_2, is_composed=True),
    "falcon": PreType(_falcon),
    "seed-coder": PreType(partial(_split, _SEED)),  # Seed-OSS
    "deepseek-llm": PreType(partial(_split, *_DEEPSEEK_LLM, has_single_digits=True)),
    "deepseek-coder": PreType(partial(_split, *_DEEPSEEK_CODER, has_single_digits=True)),
    "deepseek-v3": PreType(partial(_split, *_DEEPSEEK_V3)),
}
"""The rules by `tokenizer.ggml.pre`. All but one were compared with the models' own tokenizers."""
