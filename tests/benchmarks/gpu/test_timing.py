"""Times per call and the units of rates, with a fake GPU."""

import pytest
import torch

from benchmarks.gpu import ceilings, timing
from benchmarks.gpu.about import FIELDS, about, gpu_state
from benchmarks.gpu.timing import GRAPH_S, MAX_CALLS, TURNS, time_calls


@pytest.mark.parametrize(
    ("call_s", "num_calls", "count"),
    [(1e-4, 3, round(GRAPH_S / 1e-4)), (1.0, 3, 3), (1e-9, 2, MAX_CALLS), (1e-4, 64, 64)],
)
def test_graphs_are_long_enough_and_contain_every_input(call_s, num_calls, count, monkeypatch):
    done: list[int] = []
    graphs: list[int] = []

    def capture(work):
        del done[:]
        work()
        graphs.append(len(done))
        return list(done)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(timing, "capture", capture)
    monkeypatch.setattr(timing, "_eager", lambda calls: call_s)
    monkeypatch.setattr(timing, "replay_seconds", lambda graph, repeats: [call_s * len(graph)] * repeats)
    seconds = time_calls([lambda number=number: done.append(number) for number in range(num_calls)])
    assert seconds == pytest.approx((call_s,) * TURNS)
    assert graphs == [pytest.approx(count, abs=1)]
    assert set(done) == set(range(num_calls))


def test_without_a_gpu_calls_are_timed_without_graphs(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert len(time_calls([lambda: None], turns=3)) == 3


def test_a_copy_counts_reads_and_writes_and_a_product_two_operations(monkeypatch):
    def millisecond(work):
        work()
        return 1e-3

    monkeypatch.setattr(ceilings, "_median", millisecond)
    assert ceilings.copy_rates(4096, "cpu") == pytest.approx((2 * 4096 / 1e-3 / 1e9,) * TURNS)
    assert ceilings.product_rates(16, "cpu") == pytest.approx((2 * 16**3 / 1e-3 / 1e12,) * TURNS)


def test_the_empty_kernel_runs():
    ceilings._nothing[(1,)](2)


def test_the_output_of_nvidia_smi_is_kept(tmp_path, monkeypatch):
    tool = tmp_path / "nvidia-smi"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "nvidia-smi" in gpu_state()["error"]
    values = [f"value {number}" for number in range(len(FIELDS))]
    tool.write_text(f"#!/bin/sh\necho '{', '.join(values)}'\n")
    tool.chmod(0o755)
    assert gpu_state() == dict(zip(FIELDS, values, strict=True))
    assert about(["gpu"])["gpu"] == "value 0"
    tool.write_text("#!/bin/sh\necho 'No devices were found'\nexit 6\n")
    assert gpu_state() == {"error": "nvidia-smi ended with code 6: No devices were found"}
