"""Random orders of calls of a pool and its prefix cache, compared with a model of dicts and lists."""

from collections import Counter
from functools import cache
from itertools import product

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from app.engine.schedule.kv.block_pool import BlockPool
from app.engine.schedule.kv.prefix_cache import PrefixCache, chain_context, extend_chain
from tests.cases import examples

NUM_BLOCKS = 8
# Few different blocks, so that many texts share prefixes; a text is a salt and blocks of token ids.
BLOCKS = [(1, 1), (1, 2)]
TEXTS = [(salt, blocks) for salt in (None, "") for size in range(1, 6) for blocks in product(BLOCKS, repeat=size)]


@cache
def chain(text):
    """The contents of the blocks of `text`."""
    salt, blocks = text
    contents, parent = [], b""
    for token_ids in blocks:
        contents.append(extend_chain(parent, token_ids, chain_context("revision", None, salt)))
        parent = contents[-1].hash
    return contents


class Model:
    """The expected state of pool and cache, in the simplest representation."""

    def __init__(self):
        self.references = Counter()
        self.text = {}  # block: the text up to its end, if it is cached
        self.lru = []
        self.fences = {}  # fenced block: the step it waits for, in the order in which it was released
        self.last_step = Counter()
        self.done = 0

    def plain_free(self):
        busy = {*(+self.references), *self.lru, *self.fences}
        return [block_id for block_id in range(1, NUM_BLOCKS + 1) if block_id not in busy]

    def allocate(self, count):
        """Return the blocks that must be evicted, in order."""
        evicted = self.lru[: max(0, count - len(self.plain_free()))]
        del self.lru[: len(evicted)]
        for block_id in evicted:
            del self.text[block_id]
        return evicted

    def take(self, block_ids):
        for block_id in block_ids:
            self.references[block_id] += 1
            self.fences.pop(block_id, None)
            if block_id in self.lru:
                self.lru.remove(block_id)

    def release(self, block_ids, last_step):
        for block_id in reversed(block_ids):
            self.last_step[block_id] = max(self.last_step[block_id], last_step)
            self.references[block_id] -= 1
            if not self.references[block_id]:
                self.fences[block_id] = self.last_step[block_id]
        self.lift_fences()

    def lift_fences(self):
        for block_id in [block_id for block_id, step in self.fences.items() if step <= self.done]:
            del self.fences[block_id]
            if block_id in self.text:
                self.lru.append(block_id)

    def forget(self, block_id):
        del self.text[block_id]
        if block_id in self.lru:
            self.lru.remove(block_id)


class CacheMachine(RuleBasedStateMachine):
    """Texts find their cached prefix, compute the rest, are shared and released; steps end in order."""

    def __init__(self):
        super().__init__()
        self.pool = BlockPool(NUM_BLOCKS)
        self.cache = PrefixCache(self.pool)
        self.evicted = []
        self.pool.on_evict = self.record_eviction
        self.model = Model()
        self.tables = []  # (table, text, last step)
        self.step = 0

    def record_eviction(self, block_id):
        self.evicted.append(block_id)
        self.cache.remove(block_id)

    def find_prefix(self, text):
        """The blocks of the longest cached prefix; each must have exactly that prefix."""
        found = []
        for content in chain(text):
            block_id = self.cache.find(content)
            if block_id is None:
                break
            found.append(block_id)
            assert self.model.text[block_id] == (text[0], text[1][: len(found)])
        return found

    def add_all(self, table, text):
        for index, (content, block_id) in enumerate(zip(chain(text), table, strict=True)):
            is_new = self.cache.find(content) is None
            assert self.cache.add(content, block_id)
            if is_new:
                self.model.text[block_id] = (text[0], text[1][: index + 1])

    def choose_table(self, data):
        return data.draw(st.integers(0, len(self.tables) - 1))

    @rule(text=st.sampled_from(TEXTS))
    def start(self, text):
        found = self.find_prefix(text)
        self.pool.share(found)
        self.model.take(found)
        missing = len(text[1]) - len(found)
        if not self.pool.can_allocate(missing):
            with pytest.raises(ValueError):
                self.pool.allocate(missing)
            self.step += 1
            self.pool.release(found, self.step)
            self.model.release(found, self.step)
            return
        self.evicted.clear()
        expected = self.model.allocate(missing)
        fresh = self.pool.allocate(missing)
        assert self.evicted == expected
        assert fresh[missing - len(expected) :] == expected
        self.model.take(fresh)
        self.step += 1
        self.tables.append((found + fresh, text, self.step))

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def computed(self, data):
        table, text, _ = self.tables[self.choose_table(data)]
        self.add_all(table, text)

    @rule(text=st.sampled_from(TEXTS))
    def run_and_release(self, text):
        """Start, compute and release in one rule: without it few blocks are cached or evicted."""
        num_tables = len(self.tables)
        self.start(text)
        if len(self.tables) > num_tables:
            table, _, last_step = self.tables.pop()
            self.add_all(table, text)
            self.pool.release(table, last_step)
            self.model.release(table, last_step)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def fork(self, data):
        table, text, _ = self.tables[self.choose_table(data)]
        self.pool.share(table)
        self.model.take(table)
        self.tables.append((list(table), text, self.step))

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def pin_the_head(self, data):
        table, (salt, blocks), _ = self.tables[self.choose_table(data)]
        self.pool.share(table[:1])
        self.model.take(table[:1])
        self.tables.append((table[:1], (salt, blocks[:1]), 0))

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def touch(self, data):
        table, _, _ = self.tables[self.choose_table(data)]
        self.step += 1
        self.pool.touch(table, self.step)
        for block_id in table:
            self.model.last_step[block_id] = self.step

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def release(self, data):
        table, _, last_step = self.tables.pop(self.choose_table(data))
        self.pool.release(table, last_step)
        self.model.release(table, last_step)

    @precondition(lambda self: self.pool.last_done_step < self.step)
    @rule(num_steps=st.integers(1, 3))
    def finish_steps(self, num_steps):
        for step in range(self.model.done + 1, min(self.step, self.model.done + num_steps) + 1):
            self.pool.finish_step(step)
            self.model.done = step
            self.model.lift_fences()

    @precondition(lambda self: self.model.text)
    @rule(data=st.data())
    def remove(self, data):
        block_id = data.draw(st.sampled_from(sorted(self.model.text)))
        self.cache.remove(block_id)
        self.model.forget(block_id)

    @rule(may_clear=st.integers(0, 4))
    def clear(self, may_clear):
        if may_clear == 0:  # rarely: an empty cache tests little
            self.cache.clear()
            self.model.text.clear()
            self.model.lru.clear()

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def misuse_changes_nothing(self, data):
        table, _, _ = self.tables[self.choose_table(data)]
        unused = (*self.model.plain_free(), 0)
        for call in (self.pool.share, lambda ids: self.pool.release(ids, 0), lambda ids: self.pool.touch(ids, 99)):
            with pytest.raises(ValueError, match="not in use"):
                call([*table, unused[0]])

    @invariant()
    def records_are_consistent(self):
        self.pool.check_integrity(table for table, _, _ in self.tables)
        self.cache.check_integrity()
        model = self.model
        assert {block_id for block_id in range(NUM_BLOCKS + 1) if self.cache.content_of(block_id)} == set(model.text)
        num_free = len(model.plain_free()) + len(model.lru)
        assert (self.pool.num_cached, self.pool.num_fenced) == (len(model.lru), len(model.fences))
        assert (self.pool.num_free, self.pool.num_soon_free) == (num_free, num_free + len(model.fences))

    def teardown(self):
        for table, _, last_step in self.tables:
            self.pool.release(table, last_step)
        for step in range(self.pool.last_done_step + 1, self.step + 1):
            self.pool.finish_step(step)
        assert self.pool.num_free == NUM_BLOCKS
        self.cache.clear()
        assert (self.pool.num_free, self.pool.num_cached) == (NUM_BLOCKS, 0)
        self.pool.check_integrity([])


class LongCacheMachine(CacheMachine):
    """The same calls, more often."""


CacheMachine.TestCase.settings = settings(max_examples=examples(100), stateful_step_count=50)
LongCacheMachine.TestCase.settings = settings(max_examples=1000, stateful_step_count=50)
test_no_order_of_calls_makes_the_records_inconsistent = CacheMachine.TestCase
test_no_order_of_calls_makes_the_records_inconsistent_in_a_long_run = pytest.mark.long(LongCacheMachine.TestCase)
