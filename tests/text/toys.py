"""Small tokenizers of the kinds that models have, and model folders with them."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from app.text.template.chat_template import ChatTemplate
from app.text.tokens.tokenizer import Tokenizer

SPECIAL = ("<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|start_header_id|>",
           "<|end_header_id|>", "<|eot_id|>", "[INST]", "[/INST]", "<|pad|>", "<|user|>", "<|assistant|>",
           "<|system|>", "<|end|>")  # fmt: skip
CORPUS = [
    "You are a helpful assistant. Answer in one sentence, please.",
    "The quick brown fox jumps over the lazy dog; the dog sleeps.",
    "user assistant system begin end start header text 0123456789",
    "Ein schöner Tag, ça va? Привет мир. 你好世界 🙂👩‍👩‍👧 e\u0301",
] * 4
WORD_SPLIT = r"'(?:s|t|re|ve|m|ll|d)| ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def byte_level() -> tokenizers.Tokenizer:
    """A tokenizer as those of Llama 3, Qwen and `guide`."""
    backend = tokenizers.Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(WORD_SPLIT), "isolated")
    backend.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=list(SPECIAL), initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(CORPUS, trainer)
    backend.add_tokens([AddedToken("<think>", normalized=False)])
    return backend


def sentencepiece() -> tokenizers.Tokenizer:
    """A tokenizer as those of Llama 2 and Mistral 7B: `▁` for spaces, `<0xNN>` for bytes of unknown characters."""
    backend = _with_byte_tokens()
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return backend


def metaspace() -> tokenizers.Tokenizer:
    """A tokenizer as those of newer conversions of Llama 2: the pre-tokenizer makes the `▁`."""
    backend = _with_byte_tokens()
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    backend.decoder = decoders.Metaspace(prepend_scheme="first", split=False)
    return backend


def words() -> tokenizers.Tokenizer:
    """A tokenizer of words, without a decoder."""
    vocabulary = {word: i for i, word in enumerate([*SPECIAL, "<unk>", "the", "dog", "sleeps", "a", "é", "."])}
    backend = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.add_special_tokens(list(SPECIAL))
    return backend


def word_pieces() -> tokenizers.Tokenizer:
    """A tokenizer whose decoder has no rules for pieces."""
    vocabulary = {word: i for i, word in enumerate([*SPECIAL, "<unk>", "the", "dog", "##s", "##leep", "é", ".", "n"])}
    backend = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.decoder = decoders.WordPiece(cleanup=False)
    backend.add_special_tokens(list(SPECIAL))
    return backend


KINDS: dict[str, Callable[[], tokenizers.Tokenizer]] = {
    maker.__name__: maker for maker in (byte_level, sentencepiece, metaspace, words, word_pieces)
}


@cache
def toy(kind: str) -> tuple[Tokenizer, tokenizers.Tokenizer]:
    """A `Tokenizer` of a kind, and the tokenizer of the library `tokenizers` that it uses."""
    backend = KINDS[kind]()
    return Tokenizer(backend, {"eos_token": "</s>", "bos_token": "<s>"}), backend


def write_folder(folder: Path, kind: str = "byte_level", **config: object) -> Path:
    """Write tokenizer.json and tokenizer_config.json into `folder` and return it."""
    KINDS[kind]().save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>", "bos_token": "<s>", **config}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def oracle(folder: Path) -> PreTrainedTokenizerFast:
    """The tokenizer of transformers of a folder; only special tokens count as control tokens, as in `Tokenizer`."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    tokenizer.chat_control_tokens = []
    return tokenizer


def template_of(source: str, kind: str = "byte_level") -> ChatTemplate:
    """A chat template over a toy's tokenizer."""
    return ChatTemplate(source, toy(kind)[0])


def user(content: object) -> list[dict[str, object]]:
    """The messages of one question."""
    return [{"role": "user", "content": content}]


def _with_byte_tokens() -> tokenizers.Tokenizer:
    trained = tokenizers.Tokenizer(models.BPE(unk_token="<unk>"))
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    trained.train_from_iterator(
        CORPUS[:2], trainers.BpeTrainer(vocab_size=120, special_tokens=["<unk>", *SPECIAL], show_progress=False)
    )
    model = json.loads(trained.to_str())["model"]
    vocabulary, merges = model["vocab"], [tuple(merge) for merge in model["merges"]]
    for spelling in (*(f"<0x{byte:02X}>" for byte in range(256)), "▁▁▁", "▁"):
        vocabulary.setdefault(spelling, len(vocabulary))
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    backend.add_special_tokens(["<unk>", *SPECIAL])
    return backend
