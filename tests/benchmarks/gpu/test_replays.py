"""Replayed steps decode like those of the engine, and leave the engine's state unchanged."""

import pytest
import torch

from app.kernels.triton.interpreter import is_interpreting
from app.kernels.triton.row_layout import POSITION, TOKEN
from benchmarks.gpu.replays import ReplayedStep
from tests.checkpoints import tiny
from tests.engine.driving import request
from tests.engine.execute.gpu.gpu_engine import build, run

pytestmark = [
    pytest.mark.skipif(not is_interpreting(), reason="Triton compiles for the GPU here"),
    pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0:DeprecationWarning"),
]
BLOCKS = 3


def tokens(engine) -> list[object]:
    """The tokens of the engine for a prompt."""
    engine.add(request(engine, "a", [5, 6, 7], max_tokens=2))
    return [event.token_ids for event in run(engine) if hasattr(event, "token_ids")]


def test_replays_decode_artificial_rows_and_do_not_affect_the_engine():
    engine = build(tiny("Llama", num_hidden_layers=1), enable_prefix_caching=False)
    before = tokens(engine)
    step = ReplayedStep(engine, 16)
    memory = engine.runner.steps.memory
    fed, sampled = [], []
    for batch in (1, 2):
        step.prepare(batch, 30, BLOCKS)
        assert step.seconds(2) > 0
        rows = memory.state_SW[1 : batch + 1]
        assert rows[:, POSITION].tolist() == [29 + 1 + 2] * batch
        fed += range(1, batch + 1)
        sampled += rows[:, TOKEN].tolist()
        assert memory.state_SW[0, POSITION] == -1
    assert sampled != fed
    assert isinstance(step.num_nodes(), str)  # there is no CUDA graph here
    assert all(torch.isfinite(part).all() for cache in engine.runner.cache.layers for part in cache)
    step.close()
    assert tokens(engine) == before
