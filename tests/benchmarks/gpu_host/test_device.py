"""The scripted device: steps in order, each in its time, and whoever waits gives the interpreter away."""

import time
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from app.engine.execute.gpu.graphs import DeviceStep
from app.engine.execute.gpu.shapes import StepShape
from app.runtime.clock import monotonic
from benchmarks.gpu_host import device as device_module
from benchmarks.gpu_host.device import COPY_S, PacedDevice

SHAPE = StepShape(8, 8, True)
VOCAB = 1000
STEP = DeviceStep(None, (), None, None, None)


def paced(seconds: float) -> PacedDevice:
    return PacedDevice(lambda shape, plan: seconds, VOCAB)


def test_a_step_begins_where_the_one_before_it_ends():
    device = paced(100.0)
    work = partial(STEP.run, SHAPE)
    events = [device.record_event()]
    for issue in (work, device.capture(work).replay):
        device.run(issue)
        events.append(device.record_event())
    assert events[0].elapsed_time(events[2]) >= 200_000
    assert events[1].elapsed_time(events[2]) == pytest.approx(100_000)
    assert (device.num_steps, device.busy_s) == (2, 200.0)


def test_it_is_told_the_plan_of_a_step_and_of_padding_none():
    asked = []
    device = PacedDevice(lambda shape, plan: asked.append((shape, plan)) or 0.0, VOCAB)
    device.expect("a plan")
    for _ in range(2):
        device.run(partial(STEP.run, SHAPE))
    assert asked == [(SHAPE, "a plan"), (SHAPE, None)]


def test_other_work_is_not_done():
    device = paced(1.0)
    device.run(lambda: pytest.fail("it computes nothing"))
    assert device.num_steps == 0


def test_who_waits_sleeps_until_the_step_ends(monkeypatch):
    """For a minute, which nobody waits for here; who sleeps lets others run."""
    slept = []
    monkeypatch.setattr(device_module, "time", SimpleNamespace(perf_counter=time.perf_counter, sleep=slept.append))
    device = paced(60.0)
    began = monotonic()
    device.run(partial(STEP.run, SHAPE))
    tokens, target = torch.zeros(4, device="meta"), torch.zeros(4, dtype=torch.int32)
    done = device.fetch([(tokens, target)], after=device.record_event())
    assert done.due >= began + 60.0 + COPY_S
    done.synchronize()
    left = done.due - monotonic()
    assert len(slept) == 1 and left <= slept[0] <= 60.0 + COPY_S
    assert all(0 < token < VOCAB for token in target.tolist())
