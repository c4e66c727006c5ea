"""Before any test module is imported: without a GPU, Triton's kernels run in its interpreter.

Examples of property tests may take as long as a busy machine needs. `make test` draws a quarter of them.
"""

import gc
import os
import signal

import pytest
from hypothesis import HealthCheck, settings

from app.config.devices import has_nvidia_driver
from tests.cases import HAS_ALL_EXAMPLES, examples

# Threads of OpenMP that wait for each other sleep. By default they spin, and with more test processes than cores they
# spin for as long as the one they wait for has no core: ten times the processor time of the same work alone.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

if not has_nvidia_driver():
    os.environ.setdefault("TRITON_INTERPRET", "1")
    # The interpreter multiplies tiles with numpy. Some kernels of its OpenBLAS (for Haswell, Zen) sum a row in another
    # order when it stands elsewhere in a tile, as no GPU does. This one does not, and runs on any x86-64.
    os.environ["OPENBLAS_CORETYPE"] = "Prescott"

settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=examples(100)
)
settings.load_profile("any machine")

# A shell that runs something in the background without job control lets it ignore Ctrl-C, and so all its children;
# asyncio and the commands under test go by Python's own handler.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)  # before tests are deselected by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let `make test-long` have the properties, with all their examples."""
    if HAS_ALL_EXAMPLES:
        for item in items:
            if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
                item.add_marker("long")


def pytest_collection() -> None:
    """Collect no garbage while the tests are found: what is made then stays, and to visit it took 13 s of 33."""
    gc.disable()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Leave the tests and the modules out of later collections of garbage, which would take half a second each.

    A run of load undoes what it has frozen, and with it all: here that does nothing.

    Several processes of tests compute on one thread each, and share the process that forks servers.
    """
    if session.config.getoption("workers", 0):
        # They import much, and torch takes the environment as it is now.
        import torch

        from tests.server.quick_start import forker

        torch.set_num_threads(1)
        forker()
    gc.freeze()
    gc.enable()
    gc.unfreeze = lambda: None
