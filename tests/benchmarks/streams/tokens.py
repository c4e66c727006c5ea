"""Scripted tokens of a stream, and the faults that a check has found."""

from benchmarks.streams.script import prefix_of, stamp_of
from benchmarks.streams.stream_check import StreamCheck

STREAM = 42


def token(number: int, made: float = 100.0, stream: int = STREAM) -> str:
    """The text of a token."""
    return f"{prefix_of(stream)}{number:05x}{stamp_of(made):08x}"


def faults(check: StreamCheck) -> tuple[int, int, int]:
    """The numbers of lost, doubled and wrong tokens."""
    return check.lost, check.doubled, check.wrong
