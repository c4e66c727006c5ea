"""Threads are made where the architecture says, and cross to the loop in one place."""

from tests.house.source import Module, calls, modules

MAKERS = {
    "Thread",
    "Timer",
    "ThreadPoolExecutor",
    "ProcessPoolExecutor",
    "Process",
    "Pool",
    "to_thread",
    "run_in_threadpool",
    "start_new_thread",
    "run_sync",
    "iterate_in_threadpool",
    "run_in_executor",
}
THREAD_ROOMS = (
    "app/engine/thread.py",
    "app/engine/execute/kv_cache.py",
    "app/streaming/background.py",
    "app/server/watchdog.py",
)
LOOP_ROOMS = ("app/streaming/bridge.py",)
MODULES = modules()


def found(module: Module, names: set[str]) -> list[str]:
    """The calls in a module whose last name is one of `names`."""
    return [f"{module.path}:{line} calls {name}" for name, line in calls(module.tree) if name.split(".")[-1] in names]


def found_outside(rooms: tuple[str, ...], names: set[str]) -> list[str]:
    """The calls of `names` in modules that are none of `rooms`."""
    outside = [module for module in MODULES if not any(room in str(module.path) for room in rooms)]
    return [line for module in outside for line in found(module, names)]


def test_threads_are_made_in_their_rooms_only():
    assert found_outside(THREAD_ROOMS, MAKERS) == []


def test_only_the_bridge_calls_the_loop_from_a_thread():
    assert found_outside(LOOP_ROOMS, {"call_soon_threadsafe", "run_coroutine_threadsafe"}) == []


def test_the_search_finds_what_it_forbids():
    import ast
    from pathlib import Path

    source = "import threading\nthreading.Thread(target=f).start()\nloop.call_soon_threadsafe(g)"
    module = Module("x", Path("x"), ast.parse(source))
    assert len(found(module, MAKERS)) == 1
    assert len(found(module, {"call_soon_threadsafe"})) == 1
