"""Groups without a scheduler, requests for given prompts, and drivers in a given state."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from app.contract.requests import EngineRequest
from app.engine.schedule.group import SequenceGroup
from app.engine.schedule.kv.prefix_cache import chain_context
from app.engine.schedule.search.beam_search import BeamSearch
from app.engine.schedule.sequence import RUNNING, SWAPPED, Sequence
from app.engine.schedule.step_plan import StepPlan
from tests.engine.schedule.fake_model import Driver, make_request
from tests.engine.schedule.fake_tokens import EOS_TOKEN_ID


def make_group(group_id: int = 1, num_prompt: int = 4, max_tokens: int = 4, **given: object) -> SequenceGroup:
    """A waiting group whose sort key is its id; the ids of its sequences begin at 10 * `group_id`."""
    request = make_request(f"r{group_id}", num_prompt, max_tokens, float(group_id), **given)
    search = BeamSearch(request.params, {EOS_TOKEN_ID}) if request.params.use_beam_search else None
    context = chain_context("", request.tenant, request.cache_salt)
    group = SequenceGroup(group_id, request, context, search, sort_key=(float(group_id), group_id))
    first = Sequence.first_of(group, 10 * group_id)
    others = range(1, 1 if search else request.params.num_sequences)
    group.sequences = [first, *(first.fork(first.id + choice, choice) for choice in others)]
    group.open = list(group.sequences)
    group.fold()
    return group


def make_running_group(group_id: int = 1, num_prompt: int = 4, max_tokens: int = 4, **given: object) -> SequenceGroup:
    """A group as of `make_group`, but RUNNING and unfolded."""
    group = make_group(group_id, num_prompt, max_tokens, **given)
    group.status = RUNNING
    group.unfold()
    return group


def add_prompt(
    driver: Driver,
    request_id: str,
    prompt: Iterable[int],
    max_tokens: int = 4,
    arrival_time: float = 1e6,
    **given: object,
) -> Sequence:
    """Add a request for `prompt`, by default last in order, and return its first sequence."""
    return driver.scheduler.add(make_prompt_request(request_id, prompt, max_tokens, arrival_time, **given)).sequences[0]


def make_prompt_request(
    request_id: str, prompt: Iterable[int], max_tokens: int = 4, arrival_time: float = 1e6, **given: object
) -> EngineRequest:
    """A request for `prompt`; `given` are further arguments of `make_request`."""
    request = make_request(request_id, 1, max_tokens, arrival_time, **given)
    return replace(request, prompt_token_ids=tuple(prompt))


def make_swapped(
    num_steps: int = 3, num_prompt: int = 6, max_tokens: int = 12, *, driver: Driver | None = None, **given: object
) -> tuple[Driver, Sequence]:
    """A driver and the leader of its only group, which was swapped out after `num_steps` steps."""
    driver = driver or Driver(num_host_blocks=40, enable_prefix_caching=False)
    leader = driver.add(num_prompt, max_tokens, **given)
    driver.steps(num_steps)
    driver.scheduler.preemption.preempt(leader.group)
    assert leader.status is SWAPPED
    return driver, leader


def make_drafting_driver(longest: int = 4, **limits: float) -> Driver:
    """A driver whose sequences have up to `longest` draft tokens."""
    return Driver(speculative_ngram=longest, **limits)


def launch_draft(driver: Driver) -> StepPlan:
    """Step until a step with draft tokens is in flight; return its plan."""
    for _ in range(60):
        plan = driver.launch()
        if plan is not None and plan.num_draft_tokens:
            return plan
        while driver.in_flight:
            driver.finish_step()
        driver.scheduler.check_integrity()
    raise AssertionError("no step has draft tokens")


def new_tokens(plan: StepPlan | None) -> dict[int, int]:
    """{sequence id: number of its new tokens}, in the order of the plan."""
    return {chunk.sequence_id: len(chunk.token_ids) for chunk in plan.chunks} if plan else {}
