"""A scheduler with a model that has only step costs, in virtual time: measures how long prompts take."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from app.contract.requests import EngineRequest
from app.contract.sampling_params import SamplingParams
from app.engine.schedule.limits import SchedulerLimits
from app.engine.schedule.policy import make_policy
from app.engine.schedule.scheduler import Scheduler
from app.engine.schedule.step_plan import Sample, StepPlan, StepResult
from tests.engine.schedule.open_requests import num_open

HOST_S = 3e-4  # between two steps
CONTEXT = 262_144


class StepCosts(NamedTuple):
    """Seconds of a step: per new token, per attended token, and constant."""

    per_token: float
    per_attended: float
    constant: float

    def seconds(self, num_tokens: int, num_attended: int) -> float:
        """The duration of a step."""
        return self.per_token * num_tokens + self.per_attended * num_attended + self.constant


class Times(NamedTuple):
    """The arrival time of a request, and the times of its tokens."""

    arrival: float
    tokens: list[float]

    @property
    def to_first(self) -> float:
        """Seconds to the first token."""
        return self.tokens[0] - self.arrival

    @property
    def gaps(self) -> list[float]:
        """Seconds between the tokens."""
        return [later - earlier for earlier, later in pairwise(self.tokens)]


class TimedScheduler:
    """Steps a scheduler; `now` is the virtual time, `times` has the times of each request by id."""

    def __init__(self, costs: StepCosts, itl_target: float, max_tokens: int = 2048, policy: str = "fcfs") -> None:
        self.now = 0.0
        self.times: dict[str, Times] = {}
        self.costs = costs
        self.scheduler = Scheduler(
            SchedulerLimits(
                num_blocks=2 * CONTEXT // 16,
                block_size=16,
                max_num_seqs=64,
                max_num_batched_tokens=max_tokens,
                max_model_len=CONTEXT,
                itl_target=itl_target,
            ),
            policy=make_policy(policy),
        )

    def add(self, name: str, num_prompt: int, num_new: int, account: str = "") -> Times:
        """Add a request whose prompt shares no prefix with others."""
        first = 1_000 * len(self.times)
        params = SamplingParams(temperature=0.0, max_tokens=num_new, seed=0)
        prompt = tuple(range(first, first + num_prompt))
        self.scheduler.add(EngineRequest(name, prompt, params, self.now, account=account))
        times = self.times[name] = Times(self.now, [])
        return times

    def step(self) -> StepPlan:
        """Run one step, and advance `now` by its duration; return its plan."""
        plan = self.scheduler.schedule(self.now)
        assert plan is not None
        num_attended = sum(
            len(chunk.token_ids) * (2 * chunk.start + len(chunk.token_ids) + 1) // 2 for chunk in plan.chunks
        )
        seconds = self.costs.seconds(plan.num_tokens, num_attended)
        self.now += seconds + HOST_S
        samples = tuple(Sample(row.sequence_id, 1) for row in plan.sampled)
        for sequence, _ in self.scheduler.update(StepResult(plan.step, samples, seconds, 0.0), self.now).gained:
            self.times[sequence.request.id].tokens.append(self.now)
            if len(sequence.output_token_ids) == sequence.request.params.max_tokens:
                self.scheduler.finish(sequence)
        return plan

    def run(self, *some: Times) -> None:
        """Step until each of these requests has its first token."""
        while not all(each.tokens for each in some):
            self.step()

    def run_clients(self, num_clients: int, num_prompt: int, num_new: int) -> list[Times]:
        """Add the requests of several clients at once, and step until all have ended."""
        clients = [self.add(f"client {len(self.times)}", num_prompt, num_new) for _ in range(num_clients)]
        while num_open(self.scheduler):
            self.step()
        return clients
