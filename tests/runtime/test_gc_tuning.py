"""Objects that exist after startup are frozen, so that the garbage collector skips them; a trim leaves it nothing."""

import gc
from collections.abc import Iterator

import pytest

from app.runtime.gc_tuning import THRESHOLDS, freeze_after_startup, paused_gc, trim_heap, without_gc


@pytest.fixture(autouse=True)
def _restore_collector() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.enable()
    gc.set_threshold(*before)


def test_existing_objects_are_frozen_and_later_garbage_is_collected() -> None:
    before = gc.get_freeze_count()
    existing: list[list[object]] = [[] for _ in range(1000)]
    freeze_after_startup()
    assert gc.get_freeze_count() >= before + len(existing)
    assert gc.get_threshold() == THRESHOLDS
    cycle: list[object] = []
    cycle.append(cycle)
    del cycle
    assert gc.collect() >= 1


def test_nothing_is_collected_during_startup() -> None:
    with paused_gc():
        assert not gc.isenabled()
        freeze_after_startup()
        assert gc.isenabled()


def test_a_startup_that_never_ends_leaves_the_collector_on_and_freezes_objects() -> None:
    before = gc.get_freeze_count()
    with paused_gc():
        existing: list[list[object]] = [[] for _ in range(1000)]
    assert gc.isenabled()
    assert gc.get_freeze_count() >= before + len(existing)


@pytest.mark.parametrize("is_enabled", [True, False])
def test_a_block_without_collections_leaves_the_collector_as_it_was(is_enabled: bool) -> None:
    if not is_enabled:
        gc.disable()
    with pytest.raises(ZeroDivisionError), without_gc():
        assert not gc.isenabled()
        1 // 0  # noqa: B018
    assert gc.isenabled() == is_enabled


def test_a_trim_leaves_nothing_to_the_collector() -> None:
    """Servers trim for days, and collect rarely."""
    trim_heap()
    with without_gc():
        gc.collect()
        trim_heap()
        assert not gc.collect()
