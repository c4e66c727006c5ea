"""The interface to external KV stores: loaded tokens are not computed, and blocks being read are not reused."""

import pytest

from app.contract.requests import EngineRequest
from app.engine.schedule.kv.kv_connector import KVConnector
from app.engine.schedule.kv.prefix_cache import BlockContent
from app.engine.schedule.scheduler import Scheduler
from app.engine.schedule.sequence import PREEMPTED, RUNNING
from app.engine.schedule.step_plan import BlockLoad
from tests.engine.schedule.fake_groups import add_prompt, make_prompt_request
from tests.engine.schedule.fake_model import Driver, FakeModel
from tests.engine.schedule.fake_tokens import prefix_hash


class Store(KVConnector):
    """A KV store that has the first `num_tokens` of every prompt, and reads ended sequences when `is_reading`."""

    def __init__(self, model: FakeModel, num_tokens: int = 0, *, is_reading: bool = False) -> None:
        self.model = model
        self.num_tokens = num_tokens
        self.is_reading = is_reading
        self.queries: list[tuple[str, int]] = []
        self.loaded: list[tuple[str, int, tuple[int, ...]]] = []
        self.reading: list[tuple[str, tuple[int, ...]]] = []
        self.released: list[str] = []

    def num_matched_tokens(self, request: EngineRequest, num_computed: int) -> int:
        self.queries.append((request.id, num_computed))
        return max(num_computed, min(self.num_tokens, len(request.prompt_token_ids)))

    def load(self, request: EngineRequest, first: int, block_ids: tuple[int, ...]) -> None:
        self.loaded.append((request.id, first, block_ids))
        content, contents = request.params.seed, []
        for token_id in request.prompt_token_ids:
            content = prefix_hash(token_id, content)
            contents.append(content)
        for index, block_id in enumerate(block_ids, first):
            self.model.fill(block_id, contents[4 * index : 4 * index + 4])

    def request_finished(self, request: EngineRequest, block_ids: tuple[int, ...]) -> bool:
        self.reading.append((request.id, block_ids))
        return self.is_reading

    def take_released(self) -> tuple[str, ...]:
        released, self.released = tuple(self.released), []
        return released


def connected(num_tokens: int = 0, *, is_reading: bool = False, **limits) -> tuple[Driver, Store]:
    driver = Driver(**limits)
    store = Store(driver.model, num_tokens, is_reading=is_reading)
    driver.scheduler = Scheduler(driver.scheduler.limits, connector=store)
    return driver, store


# --- Loading --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "num_prompt, num_tokens, start", [(20, 12, 12), (20, 14, 12), (20, 20, 16), (17, 16, 16), (3, 3, 0)]
)
def test_loaded_full_blocks_are_not_computed(num_prompt, num_tokens, start):
    driver, store = connected(num_tokens)
    sequence = driver.add(num_prompt)
    plan = driver.step()
    assert plan.chunks.starts[0] == start  # the last token is always computed
    if start:
        assert store.loaded == [("r1", 0, tuple(sequence.block_table[: start // 4]))]
    driver.run(max_steps=5)


def test_only_blocks_after_the_cached_ones_are_loaded():
    driver, store = connected(0)
    add_prompt(driver, "a", range(8), max_tokens=2)
    driver.run(max_steps=3)
    store.num_tokens = 16
    sequence = add_prompt(driver, "b", range(20))
    assert driver.step().chunks.starts[0] == 16
    assert store.queries == [("a", 0), ("b", 8)] and store.loaded == [("b", 2, tuple(sequence.block_table[2:4]))]
    driver.run(max_steps=5)


def test_the_next_request_finds_loaded_blocks():
    driver, store = connected(12)
    add_prompt(driver, "a", range(20))
    driver.step()
    sequence = add_prompt(driver, "b", range(20))
    driver.step()
    assert sequence.num_computed >= 16 and len(store.loaded) == 1
    driver.run(max_steps=5)


def test_a_group_whose_loading_step_failed_restarts():
    driver, store = connected(12)
    sequence = driver.add(20)
    driver.launch()
    driver.abandon()
    assert sequence.status is PREEMPTED and sequence.num_computed == 0
    driver.run(max_steps=6)
    assert len(store.loaded) == 2


class LoadingStore(Store):
    """Gives the bytes of blocks to the plan, and notes which blocks can be found."""

    def __init__(self, model: FakeModel, num_tokens: int) -> None:
        super().__init__(model, num_tokens)
        self.kept: list[tuple[bytes, int]] = []

    def load(self, request: EngineRequest, first: int, block_ids: tuple[int, ...]) -> BlockLoad:
        super().load(request, first, block_ids)
        return BlockLoad(block_ids, memoryview(request.id.encode()))

    def keep(self, contents: list[BlockContent], block_ids: list[int]) -> None:
        self.kept += [(content.hash, block_id) for content, block_id in zip(contents, block_ids, strict=True)]


def test_bytes_of_blocks_are_part_of_the_plan_and_blocks_are_offered_once_they_can_be_found():
    driver = Driver(num_blocks=8)
    store = LoadingStore(driver.model, 12)
    driver.scheduler = Scheduler(driver.scheduler.limits, connector=store)
    sequence = add_prompt(driver, "a", range(20), max_tokens=6)
    plan = driver.launch()
    table = tuple(sequence.block_table)
    assert plan.loads == (BlockLoad(table[:3], memoryview(b"a")),) and plan.moves_blocks and store.kept == []
    driver.finish_step()
    assert [block_id for _, block_id in store.kept] == [*table[:5]]
    driver.run(max_steps=8)
    assert [block_hash for block_hash, _ in store.kept] == [content.hash for content in sequence.contents]
    assert len(store.kept) == 6
    assert sequence.group.num_cached_tokens == sequence.group.num_loaded_tokens == 12


# --- Reading --------------------------------------------------------------------------------------------------------


def test_full_blocks_of_an_ended_sequence_are_kept_until_released():
    driver, store = connected(is_reading=True, num_blocks=8, enable_prefix_caching=False)
    sequence = driver.add(8, max_tokens=2)
    driver.step()
    full = tuple(sequence.block_table[:2])
    driver.step()
    assert sequence.is_finished and store.reading == [("r1", full)]  # nine tokens were computed
    assert driver.scheduler.tables.pool.num_free == 8 - 2
    driver.scheduler.check_integrity()
    store.released = ["r1", "unknown"]
    driver.step()
    assert driver.scheduler.tables.pool.num_free == 8


def test_a_request_waits_for_blocks_that_are_being_read():
    driver, store = connected(is_reading=True, num_blocks=8)
    driver.add(20, max_tokens=1)
    driver.step()
    waiting = driver.add(20, max_tokens=2)
    assert driver.step() is None and driver.scheduler.queues.has_ready
    store.released = ["r1"]
    driver.step()
    assert waiting.status is RUNNING
    driver.run(max_steps=3)


@pytest.mark.parametrize("n", [1, 3])
def test_all_sequences_of_a_request_are_offered_and_released_together(n):
    driver, store = connected(is_reading=True)
    driver.add(6, max_tokens=3, n=n)
    driver.run(max_steps=5)
    assert [request_id for request_id, _ in store.reading] == ["r1"] * n
    assert driver.scheduler.tables.pool.num_free == 64 - (1 + n)
    store.released = ["r1"]
    driver.step()
    assert driver.scheduler.tables.pool.num_free == 64


def test_released_blocks_are_fenced_while_a_step_may_touch_them():
    driver, store = connected(is_reading=True, run_ahead=1, enable_prefix_caching=False)
    driver.add(8, max_tokens=20)
    driver.launch()
    driver.finish_step()
    driver.launch()
    driver.scheduler.abort("r1")
    assert len(store.reading) == 1
    store.released = ["r1"]
    assert driver.launch() is None
    assert driver.scheduler.tables.pool.num_fenced == 3 and driver.scheduler.tables.pool.num_free == 61
    driver.finish_step()
    assert driver.scheduler.tables.pool.num_free == 64


def test_a_request_without_blocks_is_not_offered():
    driver, store = connected(is_reading=True)
    driver.scheduler.add(make_prompt_request("a", range(8)))
    driver.scheduler.abort("a")
    assert store.reading == []


def test_the_default_connector_loads_and_keeps_no_blocks():
    connector, request = KVConnector(), make_prompt_request("a", range(9))
    assert connector.num_matched_tokens(request, 4) == 4
    assert connector.request_finished(request, (1, 2)) is False
    assert connector.take_released() == ()
    assert connector.load(request, 0, ()) is None
    assert connector.keep([], []) is None
