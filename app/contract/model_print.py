"""The print of a model and its settings: what outlives a process is of use to another one with an equal print."""

from __future__ import annotations

from hashlib import blake2b

from app import __version__
from app.config.settings import Config
from app.contract.engine_status import ModelInfo


def model_print(info: ModelInfo, config: Config) -> bytes:
    """Return 16 bytes that are equal where the same request gets the same tokens, on the same kind of machine."""
    model = config.model
    what = (
        __version__,
        info.name,
        info.revision,
        info.vocab_size,
        info.eos_token_ids,
        info.max_model_len,
        info.quantization,
        info.defaults.values(),
        (model.dtype, model.device, config.cache.kv_cache_dtype),
        (model.load_format, model.seed),
    )
    return blake2b(repr(what).encode(), digest_size=16).digest()
