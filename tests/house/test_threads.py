"""Threads are started in a few modules, and call the event loop from one."""

from tests.house.source import Module, calls, imports, modules

STARTERS = {
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
THREAD_MODULES = (
    "app/engine/thread.py",
    "app/engine/preload.py",
    "app/engine/execute/kv_cache.py",
    "app/engine/kv_disk/block_writer.py",
    "app/streaming/background.py",
    "app/streaming/kept/call_thread.py",
    "app/checkpoint/hub/together.py",
    "app/runtime/memory_speed.py",
    "app/server/watchdog.py",
    "app/server/process_end.py",
    "app/observe/log_writer.py",
    "app/text/grammar/children/fork_client.py",
    "app/text/grammar/children/mask_worker.py",
)
LOCKING = {"functools.cached_property", "functools"}  # of Python 3.11; the module alone would hide which it uses
LOOP_MODULES = ("app/streaming/async_engine.py", "app/streaming/kept/call_thread.py")


def found(module: Module, names: set[str]) -> list[str]:
    """The calls in a module whose last name is one of `names`."""
    return [f"{module.path}:{line} calls {name}" for name, line in calls(module.tree) if name.split(".")[-1] in names]


def found_outside(paths: tuple[str, ...], names: set[str]) -> list[str]:
    """The calls of `names` in modules that are none of `paths`."""
    outside = [module for module in modules() if not any(path in str(module.path) for path in paths)]
    return [line for module in outside for line in found(module, names)]


def test_threads_are_started_in_their_modules_only():
    assert found_outside(THREAD_MODULES, STARTERS) == []


def test_only_two_modules_call_the_loop_from_a_thread():
    assert found_outside(LOOP_MODULES, {"call_soon_threadsafe", "run_coroutine_threadsafe"}) == []


def with_shared_locks(module: Module) -> list[str]:
    """The imports of a module that hold one lock for all objects of a class."""
    return [f"{module.path} imports {name}" for name in imports(module.tree) if name in LOCKING]


def test_no_property_is_computed_under_a_lock_of_all_objects_of_its_class():
    """One slow request would stop all others; `app/runtime/lazy_property.py` holds none."""
    assert [line for module in modules() for line in with_shared_locks(module)] == []


def test_planted_shared_locks_are_found():
    import ast
    from pathlib import Path

    for source in ("from functools import cached_property", "import functools"):
        assert len(with_shared_locks(Module("x", Path("x"), ast.parse(source)))) == 1


def test_planted_threads_and_loop_calls_are_found():
    import ast
    from pathlib import Path

    source = "import threading\nthreading.Thread(target=f).start()\nloop.call_soon_threadsafe(g)"
    module = Module("x", Path("x"), ast.parse(source))
    assert len(found(module, STARTERS)) == 1
    assert len(found(module, {"call_soon_threadsafe"})) == 1
