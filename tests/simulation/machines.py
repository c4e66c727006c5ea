"""Step costs of an 8B model on three machines, for tests in virtual time."""

from __future__ import annotations

import pytest

from tests.simulation.prompt_time import StepCosts

TARGET_S = 0.05
# 16 GB of weights are read per step, and 16 GFLOP computed per token: at 4 TB/s and 0.5 PFLOP/s; at 40 GB/s and
# 4 TFLOP/s; with a quarter of the bytes, at 40 GB/s and 1 TFLOP/s.
GPU, CPU, CPU_INT4 = StepCosts(3.2e-5, 1.5e-9, 0.0055), StepCosts(0.004, 2.5e-7, 0.4), StepCosts(0.016, 1e-6, 0.11)
MACHINES = pytest.mark.parametrize(
    ("costs", "max_tokens"), [(GPU, 2048), (CPU, 512), (CPU_INT4, 512)], ids=["GPU", "CPU", "CPU, INT4"]
)
