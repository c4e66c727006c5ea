"""How a model's embeddings are pooled by default: as its GGUF file says, or the file of sentence-transformers."""

from __future__ import annotations

from app.checkpoint.folder import Checkpoint, read_json
from app.checkpoint.gguf.gguf_spec import read_gguf_pooling
from app.checkpoint.inspection import ModelFiles
from app.contract.requests import PoolingKind


def default_pooling(files: ModelFiles) -> PoolingKind:
    """Return the last token's pooling, if the GGUF file or `1_Pooling/config.json` names it; else the mean. Blocks.

    Raises:
        ModelRefused: the file is damaged, or a GGUF file names another pooling.
    """
    if not isinstance(files, Checkpoint):
        return read_gguf_pooling(files.metadata)
    file = files.folder / "1_Pooling" / "config.json"
    is_last = file.exists() and read_json(file).get("pooling_mode_lasttoken") is True
    return PoolingKind.LAST if is_last else PoolingKind.MEAN
