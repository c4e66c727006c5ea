"""Forks of beams: with every step some beams continue, some fork and then share their blocks, and some end."""

from __future__ import annotations

from collections.abc import Iterator

from app.engine.schedule.group import SequenceGroup
from app.engine.schedule.kv.block_tables import BlockTables
from app.engine.schedule.queues import SequenceQueues
from app.engine.schedule.search.beam_search import BeamMove
from app.engine.schedule.sequence import HOLDING, Sequence
from app.engine.schedule.step_plan import Sample


class Forks:
    """Advances beam searches. Engine thread only."""

    def __init__(self, tables: BlockTables, queues: SequenceQueues, ids: Iterator[int]) -> None:
        self._tables = tables
        self._queues = queues
        self._ids = ids

    def advance(self, group: SequenceGroup) -> bool:
        """Apply the samples of all beams: some continue, some fork, some end. True if the search has ended."""
        assert group.search is not None
        beams, samples = group.open, group.samples
        moves = group.search.advance([_candidates(samples[beam.id]) for beam in beams])
        samples.clear()
        if moves is None:
            return True
        next_beams = self._next_beams(beams, moves)
        for beam in beams:
            if beam not in next_beams:
                self._queues.release_row(beam)
                self._tables.drop(beam)
                beam.is_finished = True
        for beam, move in zip(next_beams, moves, strict=True):
            beam.gain(move.token_id)
        group.open = next_beams
        group.unfold()
        return False

    def _next_beams(self, beams: list[Sequence], moves: list[BeamMove]) -> list[Sequence]:
        """Return the beams after the step, without their new tokens: the first child of a beam is the beam itself."""
        next_beams: list[Sequence] = []
        for move in moves:
            beam = beams[move.parent]
            if beam in next_beams:
                fork = beam.fork(next(self._ids), beam.choice)
                if beam.group.status in HOLDING:
                    self._tables.fork(beam, fork)
                beam = fork
            next_beams.append(beam)
        return next_beams


def _candidates(sample: Sample) -> list[tuple[int, float]]:
    assert sample.logprobs is not None
    return list(zip(sample.logprobs.top_token_ids, sample.logprobs.top_logprobs, strict=True))
