"""Builds a tokenizer from the metadata of GGUF files: byte-level BPE, split as `gpt-2` or `smollm`."""

from __future__ import annotations

from collections.abc import Mapping

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from app.checkpoint.folder import rejected

_CONTROL = 3


def build(metadata: Mapping[str, object]) -> Tokenizer:
    """Return the tokenizer that the keys tokenizer.ggml.* describe.

    Raises:
        ModelRefused: the kind of the tokenizer is not supported, or its keys are damaged.
    """
    model, pre = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre")
    tokens, kinds, merges = (metadata.get(f"tokenizer.ggml.{name}") for name in ("tokens", "token_type", "merges"))
    if model != "gpt2" or pre not in ("gpt-2", "smollm"):
        raise rejected(
            f"The tokenizer {model!r:.40} with tokenizer.ggml.pre {pre!r:.40} is not supported; supported are 'gpt2' "
            "with 'gpt-2' or 'smollm'."
        )
    if not (isinstance(tokens, tuple) and isinstance(kinds, tuple) and isinstance(merges, tuple)):
        raise rejected("tokenizer.ggml.tokens, token_type or merges is missing; download the model again.")
    pairs = [(merge[: (at := merge.index(" ", 1))], merge[at + 1 :]) for merge in merges]
    made = Tokenizer(models.BPE({token: index for index, token in enumerate(tokens)}, pairs))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    digits = pre_tokenizers.Digits(individual_digits=True)
    made.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level] if pre == "smollm" else [byte_level])
    made.decoder = decoders.ByteLevel()
    special = [token for token, kind in zip(tokens, kinds, strict=False) if kind == _CONTROL]
    made.add_special_tokens([AddedToken(token, special=True) for token in special])
    return made
