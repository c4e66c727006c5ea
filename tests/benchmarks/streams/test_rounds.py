"""Tiny runs of every kind of cell with real processes: counts are exact, and no process is left."""

import os
from pathlib import Path

import pytest

from benchmarks.side import SideFailed
from benchmarks.streams import processes, rounds
from benchmarks.streams.cells import Cell, make_cells
from benchmarks.streams.client_group import PROMPT, SLOW, STALL, VANISH
from benchmarks.streams.pinning import available_cores, share_cores
from benchmarks.streams.processes import Processes
from benchmarks.streams.rounds import Setup, measure
from tests.benchmarks.streams.child_processes import children

pytestmark = pytest.mark.long

STREAMS, RATE = 6, 20.0
CELLS = {cell.name: cell for cell in make_cells(STREAMS, RATE)}
FULL_CELLS = {cell.name: cell for cell in make_cells(64, RATE)}  # fewer would run out of credit


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    """Shorten all waits, since the figures do not matter here."""
    for name in ("WARM_S", "SETTLE_S", "LEAST_WARM_UP_S", "STALL_S"):
        monkeypatch.setattr(rounds, name, 0.1)
    monkeypatch.setattr(rounds, "MODEL_TOKENS", 20)
    monkeypatch.setattr(processes, "MODEL_BODY", processes.MODEL_BODY | {"max_tokens": 20})


def run(cell: Cell, folder: Path, seconds: float = 0.3) -> dict[str, float]:
    """Run a cell, and check that its processes have ended."""
    found = measure(cell, Setup(seconds, share_cores(available_cores()), folder))
    assert children() == []
    return found


@pytest.mark.parametrize("name", ["both", "sse", "ws", "ws-many", "ndjson", "bare"])
def test_paced_streams_get_a_token_in_every_step(name, tmp_path):
    cell = CELLS[name]
    found = run(cell, tmp_path)
    num_steps, rest = divmod(found["tokens"], cell.num_streams)
    assert rest == 0 and num_steps >= 3
    assert found["events"] == found["tokens"]
    assert (found["lost"], found["doubled"], found["wrong"]) == (0, 0, 0)
    assert found["us_per_event"] > 0 and found["bytes_per_event"] > 20
    assert 0 < found["age_p50_ms"] <= found["age_p99_ms"]


@pytest.mark.parametrize("name", ["sse-saturated", "ws-saturated", "bare-saturated"])
def test_a_saturated_server_sends_an_event_for_each_token(name, tmp_path):
    found = run(FULL_CELLS[name], tmp_path)
    assert found["events"] >= 0.9 * found["tokens"] > 0
    assert (found["lost"], found["doubled"], found["wrong"]) == (0, 0, 0)
    if FULL_CELLS[name].rate is None:
        assert "kib_per_active_stream" not in found


def test_with_slow_and_vanishing_clients_no_token_is_lost(tmp_path):
    found = run(CELLS["slow"], tmp_path, seconds=1.0)
    assert (found["lost"], found["doubled"], found["wrong"]) == (0, 0, 0)
    assert found["returns"] >= 1
    assert found["gap_p99_ratio"] > 0
    assert 0 <= found["tokens_beyond"] <= 256, "generation does not pause for a stalled reader"


def test_the_groups_of_slow_cells_have_their_shares():
    cell = next(cell for cell in make_cells(1000, 5) if cell.has_slow_clients)
    sizes = {mode: sum(part.num_streams for part in groups.values()) for mode, groups in rounds.sizes(cell).items()}
    assert sizes == {PROMPT: 150, STALL: 20, SLOW: 20, VANISH: 10}


def test_the_embedded_model_gives_all_streams_the_same_text(tmp_path):
    found = run(CELLS["guide"], tmp_path)
    assert (found["lost"], found["doubled"], found["wrong"]) == (0, 0, 0)
    assert found["tokens"] >= 8 * 10


def test_a_client_process_that_dies_is_an_error(tmp_path, monkeypatch):
    def kill(number: float) -> None:
        os.kill(children()[-1], 9)

    monkeypatch.setattr(rounds.time, "sleep", kill)
    with pytest.raises(SideFailed, match="client: ended early"):
        measure(CELLS["bare"], Setup(0.1, share_cores(available_cores()), tmp_path))
    assert children() == []


def test_streams_are_divided_among_client_processes_by_socket(tmp_path):
    with Processes("bare", share_cores([0, 1, 2, 3]), tmp_path, stall_timeout_s=60) as processes:
        assert processes.shares(96, 32) == [32, 32, 32]
        assert processes.shares(40, 32) == [0, 32, 8]
        assert processes.shares(4, 1) == [1, 1, 2]
    assert children() == []
