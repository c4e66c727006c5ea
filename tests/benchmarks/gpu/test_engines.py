"""What an engine has to be before anything is measured with it."""

from types import SimpleNamespace

import pytest

from app.contract.engine_counts import GraphCounts
from benchmarks.gpu import engines


@pytest.mark.parametrize(("num_graphs", "is_rejected"), [(25, False), (24, True)])
def test_figures_of_steps_without_a_graph_are_none(num_graphs, is_rejected, monkeypatch):
    monkeypatch.setattr(engines, "run_load", lambda *given: 0.0)
    runner = SimpleNamespace(steps=SimpleNamespace(counts=GraphCounts(num_graphs), num_shapes=25))
    llm = SimpleNamespace(engine=SimpleNamespace(runner=runner, work_idly=lambda: False))
    if is_rejected:
        with pytest.raises(RuntimeError, match="24 of 25 CUDA graphs were captured"):
            engines.warm_up(llm)
    else:
        engines.warm_up(llm)
