"""From plan to samples: which logits belong to whom, and what is remembered between steps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from app.engine.execute.batch import BatchState, StepInputs
from app.engine.execute.model_runner import ModelRunner
from app.engine.execute.sampler import Sampler
from app.engine.schedule.plan import Chunk, RowStart, StepPlan
from app.params import SamplingParams


class OneHot:
    """A graph whose logits at a token row say: the token after this row's token."""

    def run(self, inputs: StepInputs) -> Tensor:
        """See StepGraph.run."""
        return torch.nn.functional.one_hot(inputs.ids_T[inputs.logit_rows_R] + 1, 50).float()


class Timed:
    """In the place of ThreadChoice: notes step sizes."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    @contextmanager
    def measured(self, num_tokens: int) -> Iterator[None]:
        """See ThreadChoice.measured."""
        self.sizes.append(num_tokens)
        yield


class Refuse:
    """A FaultPlan that always raises."""

    def before_launch(self, plan: StepPlan) -> None:
        """See FaultPlan."""
        raise RuntimeError("a fault")


def begin(row: int, sequence_id: int) -> RowStart:
    return RowStart(row, sequence_id, 0, SamplingParams(temperature=0.0, seed=0), (1,), ())


def runner(faults: Refuse | None = None) -> tuple[ModelRunner, Timed]:
    timed = Timed()
    return ModelRunner(BatchState(4, 8, 32, 16), OneHot(), Sampler(()), timed, faults), timed


PLAN = StepPlan(
    3, (Chunk(1, 11, 4, (7,)), Chunk(2, 12, 0, (20, 21, 22)), Chunk(3, 13, 2, (30, 31))), (0, 5),
    row_starts=(begin(1, 11), begin(2, 12), begin(3, 13)),
)  # fmt: skip


def test_samples_come_in_the_order_of_the_logit_rows_and_name_their_sequences():
    made, timed = runner()
    in_flight = made.launch(PLAN)
    result = in_flight.wait()
    assert in_flight.plan is PLAN and result.step == 3
    assert [(sample.sequence_id, sample.token_id) for sample in result.samples] == [(11, 8), (13, 32)]
    assert timed.sizes == [6]


def test_a_chunk_that_ends_inside_its_prompt_samples_nothing():
    made, _ = runner()
    plan = StepPlan(1, (Chunk(2, 12, 0, (20, 21)),), (), row_starts=(begin(2, 12),))
    assert made.launch(plan).wait().samples == ()


def test_a_step_that_raises_has_applied_the_row_changes():
    """The next plan does not say them again: the row that was released can be taken by another sequence."""
    made, _ = runner()
    made.launch(PLAN)
    made._faults = Refuse()
    with pytest.raises(RuntimeError, match="a fault"):
        made.launch(StepPlan(4, (Chunk(2, 99, 0, (5,)),), (0,), row_starts=(begin(2, 99),), released_rows=(1, 2)))
    made._faults = None
    assert set(made._sampler._rows) == {2, 3}
    again = made.launch(StepPlan(5, (Chunk(2, 99, 0, (5,)),), (0,)))
    assert again.wait().samples[0].sequence_id == 99


def test_no_gradients_are_kept():
    made, _ = runner()
    seen = []
    made._graph.run, run = (
        lambda inputs: (seen.append(torch.is_inference_mode_enabled()), run(inputs))[1],
        made._graph.run,
    )
    made.launch(PLAN)
    assert seen == [True]
