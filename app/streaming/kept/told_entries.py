"""Entries of the journal of what a stream tells, and back."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain, starmap

from app.contract.events import ChoiceEnd, Finished, FinishReason, TokenDelta
from app.journal.entries import Columns, Delta, End, Told
from app.streaming.kept.live_stream import Ending, LiveStream, State, StreamEnd


def delta_entry(choice: int, delta: TokenDelta) -> Delta:
    """Return the entry of a delta."""
    logprobs = delta.logprobs
    if logprobs is None:
        return Delta(choice, delta.token_ids, delta.text)
    return Delta(choice, delta.token_ids, delta.text, logprobs.num_top, logprobs.rows)


def add_ending(told: Told, stream: LiveStream, ending: Ending) -> None:
    """Add an ending that a stream has not taken yet to what it has told since it last took something."""
    if told.state != State.RUNNING:
        return
    if isinstance(ending, StreamEnd):
        told.state, told.failure = ending.state, ending.error
    else:
        told.ends.append(_end(*ending))
        if len(stream.ends) + len(told.ends) == len(stream.transcripts):
            told.state = State.FINISHED


def whole(stream: LiveStream, later: Told | None = None) -> Told:
    """Return all that a stream has told, and then `later`. Any thread, while the stream does not change."""
    told = Told(
        ends=[_end(choice, finished) for choice, finished in stream.ends.items()],
        state=stream.state,
        failure=stream.failure,
        columns=[transcript.columns() for transcript in stream.transcripts if transcript.last],
        is_recovered=stream.is_recovered,
    )
    if later is not None and not stream.is_over:
        told.add(later)
    return told


def restore(stream: LiveStream, told: Told) -> None:
    """Let a new stream take all that an earlier process has told."""
    by_choice: dict[int, list[Delta]] = {}
    for delta in told.deltas:
        by_choice.setdefault(delta.choice, []).append(delta)
    later = starmap(columns_of, by_choice.items())
    stream.is_recovered = told.is_recovered
    stream.restore([*told.columns, *later], _endings_of(told, stream.id))


def columns_of(choice: int, deltas: Sequence[Delta]) -> Columns:
    """Return the deltas of a choice, one at least, together."""
    texts = [delta.text.encode() for delta in deltas]
    ends = [*accumulate(len(delta.token_ids) for delta in deltas)]
    if not deltas[-1].token_ids:  # a tail
        ends.pop()
    return Columns(
        choice,
        array("i", chain.from_iterable(delta.token_ids for delta in deltas)).tobytes(),
        array("I", ends).tobytes(),
        b"".join(texts),
        array("I", accumulate(map(len, texts))).tobytes(),
        deltas[0].num_top,
        b"".join([delta.rows for delta in deltas]),
    )


def _endings_of(told: Told, stream_id: str) -> Iterator[Ending]:
    for end in told.ends:
        reason = ChoiceEnd(FinishReason(end.reason), end.stop_reason)
        yield end.choice, Finished(stream_id, end.choice, reason, end.usage, end.timings)
    if told.failure is not None:
        yield StreamEnd(State(told.state), told.failure)


def _end(choice: int, finished: Finished) -> End:
    return End(choice, str(finished.reason), finished.end.stop_reason, finished.usage, finished.timings)
