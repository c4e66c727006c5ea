"""The prefix cache: hashes, contexts, verified hits, eviction. Random orders of calls: test_prefix_cache_machine.py."""

import itertools
import struct
from hashlib import blake2b

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.schedule.kv import prefix_cache
from app.engine.schedule.kv.block_pool import BlockPool
from app.engine.schedule.kv.prefix_cache import BlockContent, PrefixCache, chain_context, extend_chain

CONTEXT = chain_context("revision", None, None)


def chain(token_ids, block_size=4, context=CONTEXT):
    """The contents of the full blocks of `token_ids`."""
    contents, parent = [], b""
    for start in range(0, len(token_ids) - block_size + 1, block_size):
        contents.append(extend_chain(parent, token_ids[start : start + block_size], context))
        parent = contents[-1].hash
    return contents


def filled(pool, cache, contents):
    """A table whose blocks are added with `contents`."""
    table = pool.allocate(len(contents))
    for content, block_id in zip(contents, table, strict=True):
        assert cache.add(content, block_id)
    return table


# --- Hashes and contexts ----------------------------------------------------------------------------------------


def test_the_hash_is_blake2b_over_parent_tokens_and_context():
    content = extend_chain(b"p" * 16, [1, 2, 300, -4], b"context")
    token_bytes = b"\x01\0\0\0\x02\0\0\0\x2c\x01\0\0\xfc\xff\xff\xff"
    assert content == BlockContent(
        blake2b(b"p" * 16 + token_bytes + b"context", digest_size=16).digest(), b"p" * 16, token_bytes, b"context"
    )


def test_the_hash_of_a_known_chain_never_changes():
    assert [content.hash.hex() for content in chain(range(8), context=chain_context("r", "t", "s"))] == [
        "cc092de7632cfb41d06567f73221ae55",
        "c55f48031ccdbbecf9f1efe2e5c5ba82",
    ]


def test_a_token_id_beyond_int32_is_rejected():
    with pytest.raises(struct.error):
        extend_chain(b"", [2**31], CONTEXT)


def test_equal_tokens_after_another_prefix_are_another_block():
    assert chain([1, 2, 3, 4, 9, 9, 9, 9])[1].hash != chain([1, 2, 3, 5, 9, 9, 9, 9])[1].hash


def test_contexts_differ_in_any_part_and_none_is_not_empty():
    parts = [("r", "s"), (None, "", "t"), (None, "", "t")]
    contexts = [chain_context(*arguments) for arguments in itertools.product(*parts)]
    assert len(set(contexts)) == len(contexts)
    assert len({extend_chain(b"", [1, 2], context).hash for context in contexts}) == len(contexts)


TEXTS = st.text(st.characters(), max_size=3)  # with lone surrogates, which JSON may contain


@given(*[st.tuples(TEXTS, st.none() | TEXTS, st.none() | TEXTS)] * 2)
def test_different_contexts_have_different_bytes(one, other):
    assert (chain_context(*one) == chain_context(*other)) == (one == other)


# --- Finding ----------------------------------------------------------------------------------------------------


def test_an_added_block_is_found_by_equal_content_only():
    pool = BlockPool(4)
    cache = PrefixCache(pool)
    first, second = chain(range(8))
    table = filled(pool, cache, [first])
    assert cache.find(chain(range(8))[0]) == table[0]
    assert cache.find(second) is None
    assert cache.find(chain(range(8), context=chain_context("revision", "tenant", None))[0]) is None
    assert (cache.content_of(table[0]), cache.content_of(4)) == (first, None)
    assert len(cache) == 1


def test_equal_content_of_another_block_is_not_added():
    pool = BlockPool(2)
    cache = PrefixCache(pool)
    (content,) = chain(range(4))
    first, second = pool.allocate(2)
    assert cache.add(content, first)
    assert cache.add(content, first)
    assert cache.add(content, second)
    assert cache.find(content) == first
    assert cache.content_of(second) is None
    pool.release([first, second], last_step=0)
    assert (pool.num_cached, pool.num_free) == (1, 2)
    cache.check_integrity()


@pytest.mark.parametrize("part", ["parent", "token_bytes", "context"])
def test_a_hit_is_verified_in_every_part(part):
    pool = BlockPool(2)
    cache = PrefixCache(pool)
    (content,) = chain(range(4))
    filled(pool, cache, [content])
    assert cache.find(content._replace(**{part: b"other"})) is None


def test_a_collision_is_a_miss_and_is_not_added(monkeypatch):
    class OneHash:
        def __init__(self, content, digest_size):
            self.size = digest_size

        def digest(self):
            return b"0" * self.size

    monkeypatch.setattr(prefix_cache, "blake2b", OneHash)
    pool = BlockPool(2)
    cache = PrefixCache(pool)
    one, other = extend_chain(b"", [1, 2], CONTEXT), extend_chain(b"", [1, 3], CONTEXT)
    assert one.hash == other.hash
    first, second = pool.allocate(2)
    assert cache.add(one, first)
    assert cache.find(other) is None
    assert not cache.add(other, second)
    assert cache.find(one) == first
    assert not pool.is_findable(second)
    cache.check_integrity()


def test_a_free_block_cannot_be_added_and_a_full_one_does_not_change():
    pool = BlockPool(2)
    cache = PrefixCache(pool)
    first, second = chain(range(8))
    with pytest.raises(ValueError, match="is free"):
        cache.add(first, 1)
    assert len(cache) == 0
    table = filled(pool, cache, [first])
    with pytest.raises(AssertionError, match="cannot change"):
        cache.add(second, table[0])
    cache.check_integrity()


# --- Removing blocks ---------------------------------------------------------------------------------------------


def test_a_block_is_found_until_it_is_evicted():
    pool = BlockPool(3)
    cache = PrefixCache(pool)
    contents = chain(range(12))
    table = filled(pool, cache, contents)
    pool.release(table, last_step=0)
    assert [cache.find(content) for content in contents] == table
    assert pool.allocate(1) == table[2:]
    assert [cache.find(content) for content in contents] == [*table[:2], None]
    cache.check_integrity()
    pool.check_integrity([table[2:]])


def test_a_found_block_is_not_evicted_once_it_is_shared():
    pool = BlockPool(2)
    cache = PrefixCache(pool)
    old, young = chain(range(4)) + chain(range(4, 8))
    for content in (old, young):
        pool.release(filled(pool, cache, [content]), last_step=0)
    found = cache.find(old)
    pool.share([found])
    pool.allocate(1)
    assert (cache.find(old), cache.find(young)) == (found, None)


def test_a_removed_block_is_not_found_and_its_table_keeps_it():
    pool = BlockPool(1)
    cache = PrefixCache(pool)
    contents = chain(range(4))
    table = filled(pool, cache, contents)
    cache.remove(table[0])
    cache.remove(table[0])
    assert cache.find(contents[0]) is None
    cache.check_integrity()
    pool.check_integrity([table])
    pool.release(table, last_step=0)
    assert pool.num_cached == 0


def test_a_cleared_cache_finds_nothing_and_its_blocks_are_free():
    pool = BlockPool(3)
    cache = PrefixCache(pool)
    contents = chain(range(8))
    table = filled(pool, cache, contents)
    pool.release(table[1:], last_step=0)
    cache.clear()
    assert [cache.find(content) for content in contents] == [None, None]
    assert (len(cache), pool.num_cached, pool.num_free) == (0, 0, 2)
    cache.check_integrity()
    pool.check_integrity([table[:1]])


def test_integrity_detects_inconsistent_maps_and_a_wrong_findable_flag():
    pool = BlockPool(2)
    cache = PrefixCache(pool)
    contents = chain(range(8))
    table = filled(pool, cache, contents)
    pool.forget(table[0])
    with pytest.raises(AssertionError, match="marks other blocks"):
        cache.check_integrity()
    pool.keep(table[0])
    cache._contents[table[1]] = contents[0]
    with pytest.raises(AssertionError, match="one to one"):
        cache.check_integrity()
    cache._block_ids = {contents[0].hash: table[1]}
    with pytest.raises(AssertionError, match="two blocks have one hash"):
        cache.check_integrity()
