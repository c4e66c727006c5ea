"""A plugin of pytest that runs the files that take longest first: `pytest -p tests.longest_first`.

Processes take whole files in this order (see `tests.forked_workers`), and so none works on a long file, or waits for a
server, when the others have nothing more to do.
"""

from __future__ import annotations

from collections import Counter

import pytest

# Few tests that take more than 20 s of a quiet machine, as `tests.slowest_files` prints it.
LONGEST = (
    "tests/e2e/test_views.py",
    "tests/e2e/test_live_tour.py",
    "tests/kernels/cpu/test_linear.py",  # compiles kernels for all processes
    "tests/commands/test_chat.py",
    "tests/server/test_serve.py",
    "tests/server/test_exit.py",
    "tests/engine/execute/gpu/test_gpu_grammars.py",
    "tests/api/test_openapi_fuzz.py",
    "tests/test_readme.py",
    "tests/test_process_edges.py",
    "tests/server/test_journal_kills.py",
    "tests/benchmarks/gpu/test_bodies.py",
    "tests/training/test_guide.py",
    "tests/e2e/test_conversations.py",
    "tests/e2e/test_page.py",
    "tests/e2e/test_flow.py",
    "tests/test_second_try.py",
    "tests/simulation/test_simulation.py",
    "tests/engine/execute/gpu/test_gpu_engine.py",
    "tests/engine/execute/gpu/test_launches.py",
    "tests/engine/execute/gpu/test_served_steps.py",
    "tests/engine/execute/gpu/test_precompilation.py",
)
# A test in these folders has a browser or a server, or starts programs: few of them take as long as hundreds of others.
SLOW_FOLDERS = (
    *("tests/e2e/", "tests/server/", "tests/agents/", "tests/regressions/", "tests/commands/", "tests/benchmarks/"),
)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first, then the slow folders, in both those with the most tests; a file keeps its order."""
    sizes = Counter(file_of(item) for item in items)

    def place(item: pytest.Item) -> tuple[bool, bool, int]:
        name = file_of(item)
        return name not in LONGEST, not name.startswith(SLOW_FOLDERS), -sizes[name]

    items.sort(key=place)


def file_of(item: pytest.Item) -> str:
    """The name of a test's file."""
    return item.nodeid.partition("::")[0]
