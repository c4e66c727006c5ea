"""The load on the scheduler, and the count of its blocks."""

import pytest

from app.loadgen.lengths import Lengths
from benchmarks.kv_load import BLOCK_SIZE, answer, make_requests, make_scheduler, measure, steady


def test_a_sequence_fills_its_blocks_slot_by_slot():
    """17 prompt tokens take two blocks; each further token takes a slot, except the last one."""
    usages = answer(make_scheduler(), make_requests([Lengths(17, 4)]))
    assert [usage.num_filled for usage in usages] == [17, 18, 19, 20]
    assert {(usage.num_blocks, usage.num_unshared, usage.num_sequences) for usage in usages} == {(2, 2, 1)}
    assert usages[0].waste == pytest.approx(15 / 32)
    assert {usage.saved for usage in usages} == {0}


def test_shared_blocks_count_once():
    """At first all three blocks of the prompt are shared; then each of the three choices writes its own third block."""
    usages = answer(make_scheduler(), make_requests([Lengths(2 * BLOCK_SIZE + 1, 3)], n=3))
    assert [(usage.num_blocks, usage.num_unshared) for usage in usages] == [(3, 9), (5, 9), (5, 9)]
    assert [usage.num_filled for usage in usages] == [33, 32 + 3 * 2, 32 + 3 * 3]
    assert usages[-1].saved == pytest.approx(4 / 9)


def test_a_common_prefix_is_shared_after_it_is_computed():
    prefix = tuple(range(4 * BLOCK_SIZE))
    scheduler = make_scheduler(max_num_seqs=8, max_num_batched_tokens=len(prefix))  # the first step computes it
    usages = answer(scheduler, make_requests([Lengths(BLOCK_SIZE, 20)] * 3, prefix=prefix))
    assert usages[1].num_sequences == 3
    assert usages[1].num_unshared - usages[1].num_blocks == 2 * 4


def test_different_prompts_share_no_blocks():
    usages = answer(make_scheduler(), make_requests([Lengths(40, 20)] * 10))
    assert max(usage.saved for usage in usages) == 0


def test_steady_steps_are_the_later_ones_with_waiting_requests():
    usages = answer(make_scheduler(max_num_seqs=1), make_requests([Lengths(5, 10)] * 3))
    assert [usage.has_waiting for usage in usages] == [True] * 20 + [False] * 10
    assert steady(usages) == usages[5:20]


def test_an_idle_scheduler_holds_no_blocks():
    scheduler = make_scheduler()
    answer(scheduler, make_requests([Lengths(40, 20)] * 10, n=2))
    assert measure(scheduler)[:4] == (0, 0, 0, 0)
    scheduler.check_integrity()
