"""Forks: choices and beams share the blocks of common tokens, and copy blocks before they write to them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.contract.errors import KVCapacityExceeded
from app.engine.schedule.sequence import FINISHED, PREEMPTED, RUNNING, SWAPPED, Sequence
from app.engine.schedule.step_plan import TableWrite
from tests.cases import examples
from tests.contract.blocks_needed import num_blocks_needed
from tests.engine.schedule.fake_groups import add_prompt
from tests.engine.schedule.fake_model import Driver
from tests.engine.schedule.fake_tokens import reference
from tests.engine.schedule.open_requests import num_open

BEAMS = {"use_beam_search": True, "beam_width": 3}


def num_used(driver: Driver) -> int:
    return driver.scheduler.limits.num_blocks - driver.scheduler.tables.pool.num_free


def outputs_of(sequence: Sequence) -> list:
    """The outputs of a request, by choice or best first."""
    group = sequence.group
    if group.search is not None:
        return group.search.results()
    return [one.output_token_ids for one in group.sequences]


def alone(num_prompt: int, max_tokens: int, **params) -> list:
    """The outputs with a pool that never runs out."""
    driver = Driver(num_blocks=500, max_num_seqs=16)
    sequence = driver.add(num_prompt, max_tokens, **params)
    driver.run(max_steps=100)
    return outputs_of(sequence)


# --- Several choices start ----------------------------------------------------------------------------------------


def test_all_choices_sample_their_first_token_from_the_same_row():
    driver = Driver()
    leader = driver.add(num_prompt=6, n=3)
    plan = driver.step()
    sequences = leader.group.open
    assert [chunk.sequence_id for chunk in plan.chunks] == [leader.id] and plan.num_tokens == 6
    assert plan.logit_rows == (5, 5, 5)
    assert [sampled.sequence_id for sampled in plan.sampled] == [sequence.id for sequence in sequences]
    assert [sequence.output_token_ids for sequence in sequences] == [
        reference(leader.prompt_token_ids, 1, choice) for choice in range(3)
    ]


@pytest.mark.parametrize("num_prompt, num_blocks", [(1, 1), (4, 1), (6, 2), (8, 2)])
def test_forks_share_all_blocks_until_they_write(num_prompt, num_blocks):
    driver = Driver()
    leader = driver.add(num_prompt, n=5)
    driver.step()
    assert num_used(driver) == num_blocks
    assert {tuple(sequence.block_table) for sequence in leader.group.open} == {tuple(leader.block_table)}


def test_only_the_leader_has_blocks_and_a_row_during_the_prompt():
    driver = Driver(max_num_batched_tokens=8)
    leader, *others = driver.add(num_prompt=20, n=3).group.open
    driver.steps(2)
    assert leader.row is not None and len(leader.block_table) == 5
    assert all(one.row is None and one.block_table == [] for one in others)
    assert len(driver.scheduler.queues.running) == 1
    plan = driver.step()
    assert len(plan.row_starts) == 2 and len({sequence.row for sequence in leader.group.open}) == 3


def test_a_folded_group_takes_all_its_seats_from_the_start():
    driver = Driver(max_num_seqs=4, max_num_batched_tokens=8)
    first = driver.add(num_prompt=20, n=3)
    second = driver.add(num_prompt=2, n=2)
    third = driver.add(num_prompt=2)
    driver.step()
    assert first.status is RUNNING and second.status is not RUNNING  # 3 + 2 seats are too many
    assert third.status is not RUNNING  # and it is not overtaken
    driver.run(max_steps=30)


def test_the_first_write_to_a_shared_block_copies_it_except_the_last_one():
    driver = Driver()
    sequences = driver.add(num_prompt=6, n=3).group.open
    driver.step()
    shared = sequences[0].block_table[1]
    plan = driver.step()
    assert [copy.source for copy in plan.copies] == [shared, shared]
    targets = [copy.target for copy in plan.copies]
    assert [sequence.block_table[1] for sequence in sequences] == [*targets, shared]
    assert plan.table_writes == tuple(
        TableWrite(one.row, 1, (target,)) for one, target in zip(sequences, targets, strict=False)
    )
    assert driver.step().copies == () and driver.scheduler.tables.num_copied == 2


def test_no_block_is_copied_after_a_prompt_of_full_blocks():
    driver = Driver()
    driver.add(num_prompt=8, n=3)
    driver.run(max_steps=10)
    assert driver.scheduler.tables.num_copied == 0


@pytest.mark.parametrize("num_prompt, n, saved", [(40, 4, 30), (42, 4, 30), (6, 2, 1), (3, 6, 0)])
def test_the_full_blocks_of_the_prompt_are_held_once(num_prompt, n, saved):
    apart, together = (Driver(enable_prefix_caching=False, max_num_batched_tokens=500) for _ in range(2))
    for number in range(n):
        add_prompt(apart, f"a{number}", range(num_prompt), 6)
    add_prompt(together, "b", range(num_prompt), 6, n=n)
    for driver in (apart, together):
        driver.steps(3)
    assert num_used(apart) - num_used(together) == saved


def test_a_choice_that_ends_early_frees_only_its_own_blocks():
    driver = Driver(enable_prefix_caching=False)
    leader, second, third = driver.add(num_prompt=6, max_tokens=9, n=3).group.open
    driver.steps(3)
    used, own = num_used(driver), second.block_table[1:]
    driver.scheduler.finish(second)
    assert num_used(driver) == used - len(own) and second.status is FINISHED
    assert driver.scheduler.tables.pool.num_references(leader.block_table[0]) == 2
    driver.scheduler.check_integrity()
    driver.run(max_steps=10)
    assert [one.output_token_ids for one in (leader, third)] == [
        reference(leader.prompt_token_ids, 9, choice) for choice in (0, 2)
    ]


def test_a_choice_that_ends_before_it_writes_keeps_the_shared_block():
    driver = Driver()
    first, second = driver.add(num_prompt=6, max_tokens=9, n=2).group.open
    driver.step()
    driver.scheduler.finish(first)
    plan = driver.step()
    assert plan.copies == () and driver.scheduler.tables.pool.num_references(second.block_table[1]) == 1
    driver.run(max_steps=10)


# --- Several choices restart ----------------------------------------------------------------------------------------


def preempted_choices(driver: Driver, num_prompt: int, num_steps: int, n: int = 3) -> list[Sequence]:
    """The sequences of a group that was preempted after `num_steps` steps."""
    leader = driver.add(num_prompt, max_tokens=9, n=n)
    driver.steps(num_steps)
    driver.scheduler.preemption.preempt(leader.group)
    assert leader.status is PREEMPTED and num_used(driver) == 0
    return leader.group.open


def test_a_preempted_group_restarts_folded_with_shared_prompt_blocks():
    driver = Driver(enable_prefix_caching=False, max_num_batched_tokens=8)
    leader, *others = preempted_choices(driver, num_prompt=10, num_steps=4)
    plan = driver.step()
    assert leader.group.is_folded and [chunk.sequence_id for chunk in plan.chunks] == [leader.id]
    assert all(one.block_table[:2] == leader.block_table[:2] for one in others)
    assert len({one.block_table[2] for one in (leader, *others)}) == 3


def test_the_end_of_the_prompt_is_copied_to_the_forks():
    driver = Driver(enable_prefix_caching=False)
    leader, *others = preempted_choices(driver, num_prompt=10, num_steps=4)
    plan = driver.step()
    assert plan.num_tokens == 10 and plan.copies == () and plan.logit_rows == ()  # the first tokens are already known
    plan = driver.step()
    assert plan.copies == tuple((leader.block_table[2], one.block_table[2]) for one in others)
    assert [(chunk.start, len(chunk.token_ids)) for chunk in plan.chunks] == [(10, 4)] * 3


def test_a_group_whose_prompt_is_cached_continues_at_once():
    driver = Driver()
    leader, *_ = preempted_choices(driver, num_prompt=8, num_steps=4)
    plan = driver.step()
    assert [(chunk.start, len(chunk.token_ids)) for chunk in plan.chunks] == [(8, 4)] * 3
    assert leader.group.num_lost_tokens == 9  # three of each choice: the prompt is not recomputed
    assert len(plan.sampled) == 3


@pytest.mark.parametrize("run_ahead", [0, 1, 2])
@pytest.mark.parametrize("is_caching", [True, False])
@pytest.mark.parametrize("num_prompt, num_steps", [(1, 1), (4, 3), (6, 1), (6, 2), (10, 5), (11, 8)])
def test_outputs_are_the_same_after_any_preemption(num_prompt, num_steps, is_caching, run_ahead):
    driver = Driver(run_ahead=run_ahead, enable_prefix_caching=is_caching)
    leader = driver.add(num_prompt, max_tokens=9, n=3)
    driver.steps(num_steps)
    driver.scheduler.preemption.preempt(leader.group)
    driver.run(max_steps=40)
    assert outputs_of(leader) == alone(num_prompt, 9, n=3) and num_used(driver) == 0


def test_a_group_without_tokens_samples_together_after_a_restart():
    driver = Driver(max_num_batched_tokens=8)
    leader = driver.add(num_prompt=12, n=3)
    driver.step()
    driver.scheduler.preemption.preempt(leader.group)
    driver.run_until(lambda: not leader.group.is_folded)
    assert all(len(one.output_token_ids) == 1 for one in leader.group.open)
    driver.run(max_steps=10)


# --- Beams ----------------------------------------------------------------------------------------------------------


def test_beams_fork_when_the_first_tokens_are_known():
    driver = Driver()
    leader = driver.add(num_prompt=6, max_tokens=8, **BEAMS)
    plan = driver.step()
    assert len(plan.sampled) == 1
    beams = leader.group.open
    assert len(beams) == 3 and beams[0] is leader
    assert {tuple(beam.block_table) for beam in beams} == {tuple(leader.block_table)} and num_used(driver) == 2
    assert len({beam.output_token_ids[0] for beam in beams}) == 3
    plan = driver.step()
    assert len(plan.copies) == 2 and [start.output_token_ids for start in plan.row_starts] == [
        tuple(beam.output_token_ids[:1]) for beam in beams[1:]
    ]


def test_a_pruned_beam_frees_its_row_and_blocks():
    driver = Driver(enable_prefix_caching=False)
    leader = driver.add(num_prompt=6, max_tokens=12, **BEAMS)
    seen = {leader.id: leader}
    while num_open(driver.scheduler):
        driver.step()
        seen.update((beam.id, beam) for beam in leader.group.open)
        held = {block_id for beam in leader.group.open for block_id in beam.block_table}
        assert len(held) == num_used(driver)
    assert len(seen) > 3 and all(beam.is_finished and beam.row is None for beam in seen.values())


@pytest.mark.parametrize("run_ahead", [0, 2])
@pytest.mark.parametrize("num_steps", range(1, 9))
def test_a_preempted_search_has_the_same_result(num_steps, run_ahead):
    driver = Driver(run_ahead=run_ahead)
    leader = driver.add(num_prompt=6, max_tokens=9, **BEAMS)
    driver.steps(num_steps)
    if leader.status is RUNNING:
        driver.scheduler.preemption.preempt(leader.group)
    driver.run(max_steps=60)
    assert outputs_of(leader) == alone(6, 9, **BEAMS) and num_used(driver) == 0


def test_a_search_preempted_between_samples_has_the_same_result():
    driver = Driver(max_num_batched_tokens=16, max_num_seqs=16, num_blocks=400)
    leader = driver.add(num_prompt=6, max_tokens=5, use_beam_search=True, beam_width=12)
    driver.steps(2)
    driver.scheduler.budget.halve()
    driver.step()
    assert len(leader.group.samples) == 8  # of 12: the step had no more tokens
    driver.scheduler.preemption.preempt(leader.group)
    driver.scheduler.check_integrity()
    driver.run(max_steps=60)
    assert outputs_of(leader) == alone(6, 5, use_beam_search=True, beam_width=12)


def test_beams_do_not_run_ahead():
    driver = Driver(run_ahead=2)
    driver.add(num_prompt=4, max_tokens=8, **BEAMS)
    assert driver.launch().num_tokens == 4
    assert driver.launch() is None
    driver.finish_step()
    assert driver.launch().num_tokens == 3
    assert driver.launch() is None


def test_beams_are_swapped_in_only_if_all_can_continue():
    """They share a block and must copy it first; later the blocks counted for the copies might be used."""
    driver = Driver(num_blocks=11, max_num_batched_tokens=7, num_host_blocks=20)
    beams = driver.add(5, 4, arrival_time=1.0, **BEAMS)
    driver.step()
    driver.scheduler.pause("r1")
    driver.scheduler.preemption.preempt(beams.group)
    older = driver.add(6, 11, arrival_time=0.5, n=3)
    driver.scheduler.resume("r1")
    assert len(driver.step().chunks) == 1  # a prompt that leaves one token, too few for the beams
    assert beams.group.status is SWAPPED
    driver.run(max_steps=40)
    assert older.is_finished and outputs_of(beams) == alone(5, 4, **BEAMS)


# --- A pool that just suffices ----------------------------------------------------------------------------------------

sizes = st.fixed_dictionaries(
    {
        "num_prompt": st.integers(1, 13),
        "max_tokens": st.integers(1, 11),
        "num_sequences": st.integers(2, 5),
        "is_search": st.booleans(),
    }
)


@settings(max_examples=examples(120))
@given(
    size=sizes,
    block_size=st.sampled_from([4, 2, 3, 1]),
    run_ahead=st.sampled_from([0, 1, 2]),
    budget=st.sampled_from([64, 8, 5]),
    is_caching=st.booleans(),
    num_host_blocks=st.sampled_from([0, 30]),
    preempted_at=st.integers(0, 14),
)
def test_a_pool_of_exactly_the_needed_blocks_suffices(size, block_size, preempted_at, budget, is_caching, **limits):
    """Also after a preemption; with one block fewer the request is rejected."""
    num_prompt, max_tokens, n = size["num_prompt"], size["max_tokens"], size["num_sequences"]
    params = {"use_beam_search": True, "beam_width": n} if size["is_search"] else {"n": n}
    num_blocks = num_blocks_needed(num_prompt, num_prompt + max_tokens - 1, n, block_size)
    limits |= {"block_size": block_size, "max_num_batched_tokens": budget, "enable_prefix_caching": is_caching}
    if num_blocks > 1:
        with pytest.raises(KVCapacityExceeded):
            Driver(num_blocks=num_blocks - 1, **limits).add(num_prompt, max_tokens, **params)
    driver = Driver(num_blocks=num_blocks, **limits)
    leader = driver.add(num_prompt, max_tokens, **params)
    driver.steps(preempted_at)
    if leader.status is RUNNING:
        driver.scheduler.preemption.preempt(leader.group)
    driver.run(max_steps=200)
    assert outputs_of(leader) == alone(num_prompt, max_tokens, **params)
    assert driver.scheduler.tables.pool.num_free == num_blocks
