"""Block tables: when blocks are needed, which sequences share them, and prefix cache hits."""

import pytest

from app.engine.schedule.group import SequenceGroup
from app.engine.schedule.kv.block_tables import BlockTables, Hit
from app.engine.schedule.kv.kv_connector import KVConnector
from app.engine.schedule.kv.prefix_cache import PrefixCache
from app.engine.schedule.sequence import Sequence
from app.engine.schedule.step_plan import BlockCopy, Chunks, StepPlan
from tests.engine.schedule.fake_groups import add_prompt, make_group, make_prompt_request, make_running_group
from tests.engine.schedule.fake_model import Driver, make_limits


def make_tables(run_ahead: int = 0, num_blocks: int = 10, **limits) -> BlockTables:
    return BlockTables(make_limits(num_blocks=num_blocks, run_ahead=run_ahead, **limits), KVConnector())


def make_sequence(num_prompt: int = 4, max_tokens: int = 20) -> Sequence:
    return make_running_group(1, num_prompt, max_tokens).open[0]


def check(tables: BlockTables, *groups: SequenceGroup) -> None:
    tables.check_integrity(groups, [], [])


def forks(tables: BlockTables, num_prompt: int, n: int, max_tokens: int = 8) -> SequenceGroup:
    """A group whose sequences share the blocks of their computed prompt."""
    group = make_running_group(1, num_prompt, max_tokens, n=n)
    leader, *others = group.open
    tables.append(leader, tables.num_missing(leader, num_prompt))
    for sequence in others:
        tables.fork(leader, sequence)
    for sequence in group.open:
        sequence.num_scheduled = sequence.num_computed = num_prompt
    return group


def test_slots_without_a_token_count_once_for_all_that_share_a_block():
    tables = make_tables()
    group = forks(tables, num_prompt=6, n=3)
    tables.append(group.open[0], 1)
    tables.count_unfilled(group.open)
    assert tables.counts.num_unfilled_tokens == 2 + 4, "the rest of the shared block, and the leader's next one"
    group.open[1].num_computed = 7
    tables.count_unfilled(group.open)
    assert tables.counts.num_unfilled_tokens == 1 + 4
    tables.count_unfilled(())
    assert tables.counts.num_unfilled_tokens == 0


# --- Growth -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_tokens, num_missing", [(1, 1), (4, 1), (5, 2), (8, 2), (9, 3)])
def test_without_run_ahead_a_block_is_missing_for_a_token_without_a_slot(num_tokens, num_missing):
    assert make_tables().num_missing(make_sequence(), num_tokens) == num_missing


@pytest.mark.parametrize("run_ahead", [1, 2, 3])
def test_the_next_block_is_missing_when_free_slots_do_not_exceed_run_ahead(run_ahead):
    tables, sequence = make_tables(run_ahead), make_sequence()
    tables.append(sequence, 1)
    for num_scheduled in range(4):
        free_slots = 4 - num_scheduled
        assert tables.num_missing(sequence, num_scheduled + 1) == (free_slots <= run_ahead)


@pytest.mark.parametrize("run_ahead", [0, 1, 3])
def test_no_block_is_missing_that_the_request_cannot_use(run_ahead):
    sequence = make_sequence(num_prompt=4, max_tokens=5)  # 8 slots: the ninth token needs none
    assert make_tables(run_ahead).num_missing(sequence, 8) == 2


def test_a_table_only_grows_until_it_is_dropped():
    tables, sequence = make_tables(), make_sequence()
    first = tables.append(sequence, 2)
    second = tables.append(sequence, 1)
    assert sequence.block_table == first + second
    check(tables, sequence.group)
    tables.drop(sequence)
    assert sequence.block_table == [] and tables.pool.num_free == 10


def test_a_dropped_table_is_fenced_until_the_last_step_of_its_sequence():
    tables, sequence = make_tables(), make_sequence()
    tables.append(sequence, 3)
    sequence.last_step = 1
    tables.drop(sequence)
    assert tables.pool.num_free == 7
    tables.pool.finish_step(1)
    assert tables.pool.num_free == 10


def test_append_without_enough_free_blocks_changes_nothing():
    tables, sequence = make_tables(num_blocks=2), make_sequence()
    with pytest.raises(ValueError, match="3 blocks"):
        tables.append(sequence, 3)
    assert sequence.block_table == [] and tables.pool.num_free == 2


# --- Sharing and copying ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 3, 5])
def test_forks_share_all_blocks_also_the_partial_last_one(n):
    tables = make_tables()
    group = forks(tables, num_prompt=6, n=n)
    assert {tuple(sequence.block_table) for sequence in group.open} == {(1, 2)}
    assert tables.pool.num_free == 8 and tables.pool.num_references(2) == n
    check(tables, group)


@pytest.mark.parametrize("n", [2, 3, 5])
def test_all_writers_of_a_shared_block_except_the_last_copy_it(n):
    tables = make_tables()
    group = forks(tables, num_prompt=6, n=n)
    assert tables.num_copies(group.open) == n - 1
    copied = [tables.copy_on_write(sequence) for sequence in group.open]
    assert copied == [*((1, [2 + number]) for number in range(1, n)), None]
    assert group.open[-1].block_table == [1, 2]
    assert tables.take_copies() == tuple(BlockCopy(2, 2 + number) for number in range(1, n))
    assert tables.take_copies() == () and tables.num_copied == n - 1
    assert tables.num_copies(group.open) == 0
    check(tables, group)


def test_a_writer_copies_a_block_that_another_sequence_keeps():
    tables = make_tables()
    writer, other = forks(tables, num_prompt=6, n=2).open
    assert tables.num_copies([writer]) == 1
    assert tables.copy_on_write(writer) == (1, [3])
    assert other.block_table == [1, 2]


def test_a_write_to_a_new_block_needs_no_copy():
    tables = make_tables()
    group = forks(tables, num_prompt=8, n=2)
    assert tables.num_copies(group.open) == 0
    assert tables.copy_on_write(group.open[0]) is None


def test_both_ends_of_a_copy_are_fenced_until_its_step_is_done():
    tables = make_tables()
    group = forks(tables, num_prompt=6, n=2)
    tables.copy_on_write(group.open[0])
    for sequence in group.open:
        tables.drop(sequence)
    assert tables.pool.num_free == 8 and tables.pool.num_fenced == 2  # the full block is in no copy
    tables.pool.finish_step(1)
    assert tables.pool.num_free == 10


# --- Starting -----------------------------------------------------------------------------------------------------


def computed(tables: BlockTables, prompt, output=(), **given) -> Sequence:
    """A sequence whose tokens are all computed and cached."""
    group = make_group(1, len(prompt), 20, **given)
    group.request = make_prompt_request("computed", prompt, 20, **given)
    (sequence,) = group.open
    sequence.prompt_token_ids = tuple(prompt)
    sequence.output_token_ids = list(output)
    sequence.num_tokens = len(prompt) + len(output)
    tables.append(sequence, tables.num_missing(sequence, sequence.num_tokens))
    sequence.num_scheduled = sequence.num_computed = sequence.num_tokens
    tables.keep(sequence)
    return sequence


def waiting_group(prompt, **given) -> SequenceGroup:
    """A waiting group with this prompt."""
    group = make_group(2, len(prompt), 20, **given)
    for sequence in group.open:
        sequence.prompt_token_ids = tuple(prompt)
    return group


def find(tables: BlockTables, prompt, **given) -> list[int]:
    return [hit.block_id for hit in tables.find_hits(waiting_group(prompt, **given).open[0])]


def test_full_blocks_of_prompt_and_output_are_found():
    tables = make_tables()
    table = computed(tables, range(6), output=range(50, 55)).block_table  # 11 tokens
    assert find(tables, [*range(6), *range(50, 55), 7, 8]) == table[:2]


@pytest.mark.parametrize("num_tokens, found", [(3, 0), (4, 0), (5, 1), (8, 1), (9, 2), (13, 3)])
def test_the_last_token_is_always_computed(num_tokens, found):
    tables = make_tables()
    computed(tables, range(12))
    assert len(find(tables, range(num_tokens))) == found


def test_blocks_after_another_prefix_are_not_found():
    tables = make_tables()
    computed(tables, range(12))
    assert find(tables, [99, *range(1, 13)]) == []
    assert len(find(tables, [*range(4), 99, *range(5, 13)])) == 1


@pytest.mark.parametrize("one, other", [({"cache_salt": "a"}, {}), ({"tenant": "a"}, {"tenant": "b"})])
def test_blocks_of_another_salt_or_tenant_are_not_found(one, other):
    tables = make_tables()
    computed(tables, range(12), **one)
    assert find(tables, range(13), **other) == [] != find(tables, range(13), **one)


def test_without_caching_no_block_is_found_or_kept():
    tables = make_tables(enable_prefix_caching=False)
    sequence = computed(tables, range(12))
    assert find(tables, range(13)) == [] and len(tables.cache) == 0
    tables.drop(sequence)
    assert tables.pool.num_cached == 0


def test_only_computed_blocks_are_kept():
    tables, sequence = make_tables(), make_sequence(num_prompt=12)
    tables.append(sequence, 3)
    for num_computed, num_kept in [(3, 0), (4, 1), (11, 2), (12, 3)]:
        sequence.num_computed = num_computed
        tables.keep(sequence)
        assert sequence.num_kept == len(tables.cache) == num_kept


def test_no_block_is_kept_after_a_hash_collision(monkeypatch):
    tables, sequence = make_tables(), make_sequence(num_prompt=12)
    tables.append(sequence, 3)
    sequence.num_computed = 12
    second = sequence.block_table[1]
    add = PrefixCache.add
    monkeypatch.setattr(
        PrefixCache, "add", lambda cache, content, block: block != second and add(cache, content, block)
    )
    tables.keep(sequence)
    assert sequence.num_kept == len(tables.cache) == 1


def test_held_hits_are_not_evicted_until_they_are_released():
    tables = make_tables(num_blocks=3)
    tables.drop(computed(tables, range(12)))
    hits = tables.find_hits(waiting_group(range(9)).open[0])
    tables.hold_hits(hits)
    assert tables.pool.num_free == 1
    tables.release_hits(hits)
    assert tables.pool.num_free == 3 and find(tables, range(9)) == [hit.block_id for hit in hits]


def test_a_starting_group_shares_its_hits_and_allocates_the_rest():
    tables = make_tables()
    old, group = computed(tables, range(12)), waiting_group(range(16))
    hits = tables.find_hits(group.open[0])
    assert hits == [Hit(block_id, is_on_device=True) for block_id in old.block_table]
    tables.hold_hits(hits)
    assert tables.num_to_start(group, hits) == 1
    tables.start(group, hits)
    (sequence,) = group.open
    assert sequence.block_table[:3] == old.block_table and len(sequence.block_table) == 4
    assert sequence.num_computed == sequence.num_scheduled == 12 and tables.pool.num_free == 6


def swap_out_block(tables: BlockTables, sequence: Sequence, index: int) -> Hit:
    """Move block `index` of a sequence with cached blocks to host memory."""
    tables.swap.store(sequence.contents[index], sequence.block_table[index])
    swaps = tables.swap.take()
    (copy,) = swaps.outs
    tables.swap.finish_step(StepPlan(1, Chunks(), (), (), swap_outs=swaps.outs), swaps, 0.0, is_done=True)
    tables.cache.remove(sequence.block_table[index])
    return Hit(copy.target, is_on_device=False)


@pytest.mark.parametrize("index", [0, 2])
def test_a_swapped_in_block_is_found_on_the_device_after_its_step(index):
    tables = make_tables(num_host_blocks=4)
    old, group = computed(tables, range(12)), waiting_group(range(16))
    hit = swap_out_block(tables, old, index)
    hits = tables.find_hits(group.open[0])
    assert len(hits) == 3 and hits[index] == hit
    tables.hold_hits(hits)
    tables.start(group, hits)
    (sequence,) = group.open
    assert sequence.num_computed == 12 and tables.cache.find(old.contents[index]) is None
    sequence.num_computed = 16
    tables.keep(sequence)
    assert tables.cache.find(old.contents[index]) == sequence.block_table[index]


def test_a_swapped_in_block_is_fenced_until_its_step_is_done():
    tables = make_tables(num_host_blocks=4)
    old, group = computed(tables, range(5)), waiting_group(range(6))
    swap_out_block(tables, old, 0)
    hits = tables.find_hits(group.open[0])
    tables.hold_hits(hits)
    tables.swap.step = 2
    tables.start(group, hits)
    (block_id, _) = group.open[0].block_table
    tables.drop(group.open[0])  # aborted
    assert tables.pool.num_fenced == 1
    tables.pool.finish_step(2)
    assert tables.pool.num_fenced == 0 and tables.pool.num_references(block_id) == 0


def test_restarted_sequences_share_only_full_blocks_of_the_prompt():
    tables = make_tables()
    group = make_group(1, num_prompt=6, max_tokens=9, n=3)
    for sequence in group.open:
        sequence.output_token_ids = [5, 6, 7]
        sequence.num_tokens = 9
    assert tables.num_to_start(group, []) == 3 + 2 + 2
    tables.start(group, [])
    assert tables.pool.num_free == 10 - 7
    leader, *others = group.open
    assert all(sequence.block_table[0] == leader.block_table[0] for sequence in others)
    assert len({block_id for sequence in group.open for block_id in sequence.block_table}) == 7
    tables.copy_prompt_end(leader, others[0])
    assert tables.take_copies() == (BlockCopy(leader.block_table[1], others[0].block_table[1]),)


def test_a_prompt_of_full_blocks_has_no_end_to_copy():
    tables = make_tables()
    group = forks(tables, num_prompt=8, n=2)
    tables.copy_prompt_end(*group.open)
    assert tables.take_copies() == ()


# --- Prefix caching in a driver -------------------------------------------------------------------------------------


def cached_tokens(driver: Driver, request_id: str, prompt, **given) -> int:
    """Run a request to its end; return the number of its cached tokens."""
    sequence = add_prompt(driver, request_id, prompt, **given)
    driver.run(max_steps=20)
    return sequence.group.num_cached_tokens


@pytest.mark.parametrize("num_prompt, max_tokens", [(3, 2), (4, 4), (6, 7), (9, 8), (10, 1)])
def test_the_next_turn_of_a_chat_finds_all_full_blocks_of_the_last_one(num_prompt, max_tokens):
    driver = Driver()
    first = driver.add(num_prompt, max_tokens)
    driver.run(max_steps=20)
    common = [*first.prompt_token_ids, *first.output_token_ids]
    expected = (len(common) - 1) // 4 * 4  # the last token of an output that ended by length is never computed
    assert cached_tokens(driver, "turn 2", [*common, 7, 8, 9]) == expected


def test_queries_and_hits_are_counted_in_tokens():
    driver = Driver()
    for name, prompt in (("a", range(10)), ("b", range(10)), ("c", [*range(6), 99, 98, 97])):
        cached_tokens(driver, name, prompt)
    assert (
        driver.scheduler.planner.starts.counts.num_prefix_queries,
        driver.scheduler.planner.starts.counts.num_prefix_hits,
    ) == (29, 8 + 4)


@pytest.mark.parametrize("given", [{"cache_salt": "x"}, {"tenant": "x"}])
def test_requests_of_another_salt_or_tenant_share_no_block(given):
    driver = Driver()
    one, other = add_prompt(driver, "one", range(12)), add_prompt(driver, "other", range(12), **given)
    driver.step()
    later = add_prompt(driver, "later", range(13), **given)
    driver.step()
    assert not set(one.block_table) & {*other.block_table, *later.block_table}
    assert later.group.num_cached_tokens == 12
    driver.run(max_steps=20)


def test_blocks_are_found_while_their_first_sequence_runs():
    driver = Driver()
    first = add_prompt(driver, "first", range(12), 20)
    driver.step()
    second = add_prompt(driver, "second", range(12), 20)
    driver.step()
    assert second.block_table[:2] == first.block_table[:2] and second.block_table[2] != first.block_table[2]


def test_blocks_computed_by_a_step_in_flight_are_not_found_yet():
    driver = Driver(run_ahead=1)
    add_prompt(driver, "first", range(12), 20)
    driver.launch()
    second = add_prompt(driver, "second", range(12), 20)
    driver.launch()
    assert second.group.num_cached_tokens == 0
    driver.finish_step()
    driver.finish_step()
    assert cached_tokens(driver, "third", range(12)) == 8


def test_the_least_recently_used_prefix_is_evicted_from_its_end():
    driver = Driver(num_blocks=8)
    for name, first in (("a", 0), ("b", 100), ("a again", 0)):
        cached_tokens(driver, name, range(first, first + 13), max_tokens=1)  # three full blocks each
    cached_tokens(driver, "c", range(200, 216), max_tokens=1)  # two were free, two are b's last ones
    tables = driver.scheduler.tables
    assert len(find(tables, range(13))) == 3
    assert len(find(tables, range(100, 113))) == 1
