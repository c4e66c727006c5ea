"""The deltas of a record of the journal, those that are written together too."""

from __future__ import annotations

from array import array

from app.contract.packed_logprobs import row_bytes
from app.journal.entries import Columns, Delta, Told


def deltas_of(told: Told) -> list[Delta]:
    """All deltas in the order of their coming, choice by choice."""
    return [*(delta for columns in told.columns for delta in single(columns)), *told.deltas]


def single(columns: Columns) -> list[Delta]:
    """Deltas one by one."""
    token_ids, text_ends = array("i", columns.token_ids), array("I", columns.text_ends)
    ends = [*array("I", columns.ends)]
    ends += ends[-1:] * (len(text_ends) - len(ends)) if ends else [0] * len(text_ends)
    size = 0 if columns.num_top is None else row_bytes(columns.num_top)
    deltas, after, text_after = list[Delta](), 0, 0
    for number, (end, text_end) in enumerate(zip(ends, text_ends, strict=True), start=1):
        text = columns.text[text_after:text_end].decode()
        rows = columns.rows[after * size : None if number == len(ends) else end * size]
        deltas.append(Delta(columns.choice, tuple(token_ids[after:end]), text, columns.num_top, rows))
        after, text_after = end, text_end
    return deltas
