"""About how much memory grammars take."""

from __future__ import annotations

from app.contract.grammar import Grammar

MAX_BYTES = 64 * 2**20
"""The most that grammars of one model take together."""
# About what a compiled grammar takes: measured at 4 to 10 MB for sources of 60 to 140 KB.
ENTRY_BYTES, BYTES_PER_SOURCE_BYTE = 64 * 2**10, 80
# Of a rejected one only the source is kept, which takes up to four bytes for each character.
BYTES_PER_REJECTED_BYTE = 4


def compiled_bytes(grammar: Grammar) -> int:
    """Return about what a compiled grammar takes."""
    return ENTRY_BYTES + BYTES_PER_SOURCE_BYTE * _source_bytes(grammar)


def rejected_bytes(grammar: Grammar) -> int:
    """Return about what a rejected grammar takes."""
    return ENTRY_BYTES + BYTES_PER_REJECTED_BYTE * _source_bytes(grammar)


def _source_bytes(grammar: Grammar) -> int:
    return len((grammar.source + (grammar.gbnf or "")).encode(errors="surrogatepass"))
