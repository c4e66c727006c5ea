"""Reads rows of a quantized tensor, or rows that are stored in another order, some at a time; finds rows in memory."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from app.checkpoint.stored_tensor import StoredTensor
from app.models.gguf.gguf_blocks import decode
from app.models.mapped_file import MappedFile

# Weights that are decoded at once. Torch computes fewer than 32,768 numbers in one thread: they stay in the cache, and
# no thread waits for others at each of ten operations (on a busy machine that is 50 times slower).
_STEP_WEIGHTS = 2**15 - 1
# Bytes of the file that are read before they are dropped.
_HELD_BYTES = 4 << 20


def read_rows(file: MappedFile, tensor: StoredTensor, out: Tensor) -> None:
    """Fill `out` with the decoded rows of a matrix, or the numbers of a vector, in the decoder's order.

    Raises:
        ModelRefused: the file has been changed.
    """
    if out.dim() == 1:
        out = out[:, None]
    num_rows, order = tensor.shape[0], _order(tensor)
    stored = file.view(tensor.begin, tensor.end).view(num_rows, -1)
    step, row_bytes = max(1, _STEP_WEIGHTS * num_rows // tensor.num_weights), stored.shape[1]
    num_held = max(step, _HELD_BYTES // row_bytes)
    for held in _pieces(range(num_rows), num_held):
        for some in _pieces(held, step):
            part = slice(some.start, some.stop)
            raw = stored[part] if order is None else stored.index_select(0, order[part])
            out[part].copy_(decode(tensor.type.name, raw))
        places = torch.arange(held.start, held.stop) if order is None else order[held.start : held.stop]
        first, last = int(places.min()), int(places.max())
        file.drop(tensor.begin + first * row_bytes, tensor.begin + (last + 1) * row_bytes)


def row_addresses(file: MappedFile, tensor: StoredTensor) -> Tensor:
    """Return where in memory each row of a matrix begins, int64 [rows], in the decoder's order.

    They are good until the file is closed. Raises as `read_rows` does.
    """
    stored, order = file.view(tensor.begin, tensor.end), _order(tensor)
    places = torch.arange(tensor.shape[0]) if order is None else order
    return stored.data_ptr() + len(stored) // tensor.shape[0] * places


def _order(tensor: StoredTensor) -> Tensor | None:
    """Return where each row of a tensor stands in the file; None: in its place."""
    if not tensor.pair_rows:
        return None
    pairs = torch.arange(tensor.shape[0]).view(-1, tensor.pair_rows // 2, 2)
    return pairs.transpose(1, 2).flatten()


def _pieces(rows: range, size: int) -> Iterator[range]:
    """Yield parts of at most `size` rows."""
    for begin in range(rows.start, rows.stop, size):
        yield range(begin, min(begin + size, rows.stop))
