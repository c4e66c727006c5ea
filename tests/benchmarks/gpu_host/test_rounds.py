"""Rounds: the real engine and the real server over scripted devices, with few and short requests."""

import pytest

from app.commands.measuring.workload import Workload
from benchmarks.gpu.loads import uniform_load
from benchmarks.gpu_host.cells import AT_ONCE, CELLS, Cell
from benchmarks.gpu_host.rounds import measure
from benchmarks.gpu_host.step_times import STEP_TIMES
from benchmarks.limits import limits


class Few(Cell):
    """A cell of few requests."""

    def load(self) -> Workload:
        """Return them."""
        return uniform_load(4, 20, 10)


@pytest.mark.long
def test_a_round_counts_tokens_steps_and_threads(tmp_path):
    (found,) = measure(Few("Qwen3-0.6B", AT_ONCE), 1, tmp_path)
    assert found.num_tokens == 40
    assert 10 <= found.offline.num_steps <= 13  # up to three are in flight when the last token is read
    assert found.offline.seconds >= found.offline.device_s > 0
    assert found.served.num_steps >= 10
    assert 4 <= found.served.parts <= 44
    assert min(found.served.threads.loop, found.served.threads.engine, found.served.clients_s) > 0


def test_cells_and_limits_know_each_other():
    assert {cell.model for cell in CELLS.values()} == set(STEP_TIMES)
    assert {name.partition(": ")[0] for name in limits("gpu_host")} == {cell.name for cell in CELLS.values()}
