"""Builds a tokenizer from the metadata of a GGUF file.

Two kinds (`tokenizer.ggml.model`): `gpt2` is byte-level BPE with merges, whose words `tokenizer.ggml.pre` names a rule
for; `llama` is sentencepiece BPE by score, with a token for each byte. The ids are those of the models' tokenizer.json
and transformers. Everything else is rejected by name, because a similar rule gives wrong ids for some texts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers
from tokenizers.processors import TemplateProcessing

from app.contract.errors import NOT_OURS, ModelRefused
from app.text.tokens.gguf.gguf_merges import SPACE, derive_merges, read_merges, respell_spaces
from app.text.tokens.gguf.gguf_pre_tokenizers import PRE_TYPES
from app.text.tokens.gguf.gguf_vocabulary import PREFIX, TokenType, Vocabulary, damaged, read_flag, read_vocabulary
from app.text.tokens.tokenizer import Tokenizer

# Special tokens of Phi 3 that keep the spaces after them; all others drop them.
_PHI_3_KEEPING = {"<unk>", "<s>", "<|endoftext|>"}


def load(metadata: Mapping[str, object]) -> Tokenizer:
    """Return the tokenizer that the keys tokenizer.ggml.* describe; lists may be tuples.

    Raises:
        ModelRefused: the kind or the rule of the words is not supported, or a key is damaged; the message names it.
    """
    kind = metadata.get(PREFIX + "model")
    if kind not in ("gpt2", "llama"):
        raise ModelRefused(
            f"{PREFIX}model is {kind!r:.40}; supported are 'gpt2' (byte-level BPE) and 'llama' (sentencepiece BPE).",
            param="model",
        )
    vocabulary = read_vocabulary(metadata)
    try:
        build = _byte_level if kind == "gpt2" else _sentencepiece
        return Tokenizer(build(metadata, vocabulary), vocabulary.named_tokens)
    except (ModelRefused, *NOT_OURS):
        raise
    except BaseException as error:  # `tokenizers` has no specific errors, and its panics are not Exceptions
        reason = " ".join(str(error).split())[:100]
        raise damaged("tokens", f"cannot be used ({reason})") from None


def _byte_level(metadata: Mapping[str, object], vocabulary: Vocabulary) -> tokenizers.Tokenizer:
    name = metadata.get(PREFIX + "pre")
    pre_type = PRE_TYPES.get(name) if isinstance(name, str) else None
    if pre_type is None:
        what = "is missing" if name is None else f"is {name!r:.40}"
        raise ModelRefused(
            f"{PREFIX}pre {what}; supported are {', '.join(PRE_TYPES)}. Take a newer GGUF file of the model, or serve "
            "it from its safetensors files.",
            param="model",
        )
    merges = read_merges(metadata, vocabulary.ids)
    backend = tokenizers.Tokenizer(models.BPE(vocabulary.ids, merges, ignore_merges=pre_type.ignore_merges))
    normalizer = pre_type.normalizer()
    if normalizer is not None:
        backend.normalizer = normalizer
    backend.pre_tokenizer = pre_type.pre_tokenizer()
    backend.decoder = decoders.ByteLevel()
    _add_tokens(backend, vocabulary, vocabulary.user_defined)
    _add_ends(backend, metadata, vocabulary, adds_bos=pre_type.adds_bos)
    return backend


def _sentencepiece(metadata: Mapping[str, object], vocabulary: Vocabulary) -> tokenizers.Tokenizer:
    ids = respell_spaces(vocabulary)
    merges = derive_merges(metadata, vocabulary, ids)
    unknown = [vocabulary.tokens[index] for index, kind in enumerate(vocabulary.types) if kind == TokenType.UNKNOWN]
    unk_token = vocabulary.named_tokens.get("unk_token", unknown[0] if unknown else None)
    backend = tokenizers.Tokenizer(
        models.BPE(ids, merges, unk_token=unk_token, byte_fallback=True, fuse_unk=True)
    )  # fmt: skip
    replace = normalizers.Replace(" ", SPACE)
    decoding = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if read_flag(metadata, "add_space_prefix", True):
        backend.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), replace])
        decoding.append(decoders.Strip(" ", 1, 0))
    else:
        backend.normalizer = replace
    backend.decoder = decoders.Sequence(decoding)
    # Those with spaces are respelt: merges make them, as in Gemma's tokenizer.json.
    user_defined = [token for token in vocabulary.user_defined if token in ids]
    drops_spaces = metadata.get("general.architecture") == "phi3"
    _add_tokens(backend, vocabulary, user_defined, drops_spaces=drops_spaces)
    _add_ends(backend, metadata, vocabulary, adds_bos=True)
    return backend


def _add_tokens(
    backend: tokenizers.Tokenizer, vocabulary: Vocabulary, user_defined: Iterable[str], *, drops_spaces: bool = False
) -> None:
    """Add the tokens that are found in a text before it is split; the ids stay those of the vocabulary."""
    kept = _PHI_3_KEEPING if drops_spaces else set(vocabulary.special)
    special = [AddedToken(token, normalized=False, rstrip=token not in kept) for token in vocabulary.special]
    backend.add_special_tokens(special)
    backend.add_tokens(
        [
            AddedToken(token, normalized=False, special=False, rstrip=drops_spaces and token == "</s>")
            for token in user_defined
        ]
    )


def _add_ends(
    backend: tokenizers.Tokenizer, metadata: Mapping[str, object], vocabulary: Vocabulary, *, adds_bos: bool
) -> None:
    """Put BOS and EOS around a text, as the metadata says; `adds_bos` holds if it does not."""
    adds = {"bos": read_flag(metadata, "add_bos_token", adds_bos), "eos": read_flag(metadata, "add_eos_token", False)}
    around = [name for name, is_added in adds.items() if is_added]
    if not around:
        return
    special_tokens = []
    for name in around:
        text = vocabulary.named_tokens.get(f"{name}_token")
        if text is None:
            raise damaged(f"{name}_token_id", "is missing, although it is put around each text")
        special_tokens.append({"id": name, "ids": [vocabulary.ids[text]], "tokens": [text]})
    template = [*(["bos"] if adds["bos"] else []), "$A", *(["eos"] if adds["eos"] else [])]
    backend.post_processor = TemplateProcessing(single=template, special_tokens=special_tokens)
