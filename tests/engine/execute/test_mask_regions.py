"""Places of masks: half for sequences with rows, and those of sequences without one for the next that gets one."""

from __future__ import annotations

from app.contract.grammar import Constraint, Grammar, GrammarKind
from app.engine.execute.mask_regions import MaskRegions
from app.engine.execute.remote_sequence import RemoteSequence

GRAMMAR = Grammar(GrammarKind.REGEX, "a")


def sequence_in(region: int | None) -> RemoteSequence:
    assert region is not None
    return RemoteSequence(1, 1, "", GRAMMAR, Constraint(GRAMMAR), [], None, region, is_ready=True)


def test_half_of_them_are_kept_for_sequences_with_rows():
    regions = MaskRegions(4)
    assert [regions.spare() for _ in range(3)].count(None) == 1 and regions.num_free == 2
    assert None not in (regions.take([]), regions.take([])) and regions.take([]) is None


def test_the_next_to_start_takes_the_place_of_one_that_waits():
    regions = MaskRegions(1)
    waiting, without = sequence_in(regions.take([])), sequence_in(-1)
    region = waiting.region
    assert regions.take([without, waiting]) == region
    assert (waiting.region, waiting.is_ready) == (-1, False) and regions.num_free == 0


def test_a_place_is_free_once():
    regions = MaskRegions(2)
    sequence = sequence_in(regions.take([]))
    regions.free(sequence)
    regions.free(sequence)
    assert regions.num_free == 2 and not sequence.is_ready
