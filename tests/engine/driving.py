"""Drives the real engine over tiny checkpoints, and records the logits it samples from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from app.config.settings import Config, make_config
from app.contract.admission import admit
from app.contract.events import EngineEvent, Finished, RequestFailed, TokenDelta
from app.contract.requests import EngineRequest
from app.contract.sampling_params import SamplingParams
from app.engine.build import build_engine
from app.engine.engine import Engine
from app.engine.execute.cpu.batch import StepInputs
from app.engine.execute.cpu.graph import HostGraph
from app.engine.execute.cpu.runner import CpuRunner
from app.engine.execute.interfaces import InFlight
from app.engine.schedule.step_plan import StepPlan
from app.engine.thread import EngineThread
from app.runtime.clock import Clock, monotonic
from app.text.grammar.cache import GrammarCache
from benchmarks.passing_runner import PassingRunner
from tests.engine.execute.faulty_runner import FaultyRunner

make_grammars: Callable[[], GrammarCache] = GrammarCache
"""How engines get their grammars; `served.serve` changes it."""


def build(model: Path | str, *, faults: FaultyRunner | None = None, **settings: object) -> Engine:
    """An engine over a model's folder or file, computing on one thread."""
    torch.set_num_threads(1)
    defaults = {"num_kv_blocks": 128, "dtype": "auto"}
    config = make_config({"model": str(model), **defaults, **settings})
    engine = build_engine(config, grammars=make_grammars())
    if faults is not None:
        faults.wrap(engine)
    return engine


def engine_thread(
    config: Config, faults: FaultyRunner | None = None, clock: Clock = monotonic, grammars: GrammarCache | None = None
) -> EngineThread:
    """An engine thread, whose steps go through `faults`."""

    def build_faulty(progress: Callable[[float], None]) -> Engine:
        engine = build_engine(config, progress=progress, grammars=grammars, is_serving=True)
        faults.wrap(engine)
        return engine

    return EngineThread(config, build=None if faults is None else build_faulty, clock=clock, grammars=grammars)


def request(engine: Engine, request_id: str, prompt: Sequence[int], **params: object) -> EngineRequest:
    """A request admitted as by the API; greedy and ignoring EOS by default."""
    given = SamplingParams(**{"temperature": 0.0, "ignore_eos": True, "max_tokens": 16, **params})
    return EngineRequest(request_id, tuple(prompt), admit(prompt, given, engine.model_info), 0.0)


class Run:
    """Steps an engine and collects its events."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.events: list[EngineEvent] = []
        self.counts = (0, 0)
        """Tokens of the last step: prompt tokens, and decode tokens without draft tokens."""

    def add(self, *requests: EngineRequest) -> None:
        """Queue requests."""
        for each in requests:
            self.events += self.engine.add(each)

    def step(self, count: int = 1) -> None:
        """Run some steps; the scheduler's integrity is checked after each."""
        for _ in range(count):
            report = self.engine.turn((), 0.0)
            self.events += report.events
            self.counts = (report.num_prefill_tokens, report.num_decode_tokens)
            self.engine.scheduler.check_integrity()

    def finish(self, max_steps: int = 5000) -> None:
        """Step until no request is open."""
        for _ in range(max_steps):
            if not self.engine.has_ready_work:
                return
            self.step()
        raise AssertionError(f"not finished after {max_steps} steps")

    def tokens(self, request_id: str) -> list[int]:
        """The generated token ids of a request."""
        deltas = [event for event in self.of(request_id) if isinstance(event, TokenDelta)]
        return [token_id for delta in deltas for token_id in delta.token_ids]

    def end(self, request_id: str) -> Finished | RequestFailed | None:
        """How a request ended; None if it has not."""
        ends = [event for event in self.of(request_id) if not isinstance(event, TokenDelta)]
        assert len(ends) <= 1, "a request ended twice"
        return ends[0] if ends else None

    def of(self, request_id: str) -> list[EngineEvent]:
        """A request's events."""
        return [event for event in self.events if event.request_id == request_id]


def generate(engine: Engine, requests: Iterable[EngineRequest], *, steps_between: int = 0) -> dict[str, list[int]]:
    """Run requests that arrive `steps_between` steps apart until all end; return token ids by request id."""
    run, requests = Run(engine), list(requests)
    for each in requests:
        run.add(each)
        run.step(steps_between)
    run.finish()
    assert all(isinstance(run.end(each.id), Finished) for each in requests)
    assert engine.stats().blocks.num_free == engine.stats().blocks.num_blocks
    return {each.id: run.tokens(each.id) for each in requests}


class LogitRecorder(PassingRunner):
    """Stands between the model runner and its step graph, and copies the logits of every sampled token.

    `logits[prompt]` (of one of several choices: the prompt and minus its number) maps a position to the logits [V]
    computed there; a second computation of the same position must give the same bits. Logits after rejected draft
    tokens belong to no output and are left out.
    """

    def __init__(self, engine: Engine) -> None:
        self.logits: dict[tuple[int, ...], dict[int, Tensor]] = {}
        self._prompts: dict[int, tuple[int, ...]] = {}
        self._runner: CpuRunner = engine.runner
        self._graph: HostGraph = engine.runner._graph
        self._plan: StepPlan | None = None
        # By index of the logit row: the draft token, prompt and position, and the logits computed there.
        self._drafts: dict[int, tuple[int, tuple[int, ...], int, Tensor]] = {}
        engine.runner._graph = self
        self.samples = self._graph.samples
        engine.runner = self

    def launch(self, plan: StepPlan) -> InFlight:
        self._plan = plan
        for start in plan.row_starts:
            choice = (-start.choice,) if start.sampling.num_sequences > 1 else ()
            self._prompts[start.sequence_id] = start.prompt_token_ids + choice
        self._drafts.clear()
        in_flight = super().launch(plan)
        sampled = [sample.token_id for sample in in_flight._result.samples]
        rejected: set[int] = set()
        for number, (draft, prompt, position, logits_V) in self._drafts.items():
            if sampled[number - 1] != draft or number - 1 in rejected:
                rejected.add(number)
            else:
                self._record(prompt, position, logits_V)
        return in_flight

    def run(self, inputs: StepInputs) -> Tensor:
        logits_RV = self._graph.run(inputs)
        positions = [
            (chunk.token_ids[offset], self._prompts[chunk.sequence_id], chunk.start + offset)
            for chunk in self._plan.chunks
            for offset in range(len(chunk.token_ids))
        ]
        before = None
        for number, (row, sampled) in enumerate(zip(self._plan.logit_rows, self._plan.sampled, strict=True)):
            token_id, prompt, position = positions[row]
            if before == (sampled, row - 1):
                self._drafts[number] = (token_id, prompt, position, logits_RV[number].clone())
            else:
                self._record(prompt, position, logits_RV[number])
            before = (sampled, row)
        return logits_RV

    def _record(self, prompt: tuple[int, ...], position: int, logits_V: Tensor) -> None:
        known = self.logits.setdefault(prompt, {}).setdefault(position, logits_V.clone())
        assert torch.equal(known, logits_V), f"position {position} has other logits the second time"
