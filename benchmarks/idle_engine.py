"""The engine without its model, to measure the engine's own time.

The scheduler, the batch's layout, the model runner, the rows of the sampler and the output loop are those of the
engine. The step graph computes nothing, and the sampler returns the tokens of a text, so that the output is text. Times
are `time.thread_time()`, which other programs on the machine affect least.
"""

import time
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from app.checkpoint.names import resolve
from app.checkpoint.text_files import FolderText
from app.contract.engine_status import ModelInfo
from app.contract.events import EngineEvent
from app.contract.requests import EngineRequest
from app.engine.engine import Engine
from app.engine.execute.cpu.batch import BatchState, StepInputs
from app.engine.execute.cpu.runner import CpuRunner
from app.engine.execute.cpu.thread_choice import ThreadChoice
from app.engine.execute.host_sampler import Sampler
from app.engine.execute.kv_cache import KVCache, KVLayout
from app.engine.execute.local_masks import LocalMasks
from app.engine.execute.masks import SampleMasks
from app.engine.output_processor import OutputProcessor
from app.engine.schedule.limits import SchedulerLimits
from app.engine.schedule.scheduler import Scheduler
from app.engine.schedule.step_plan import RowStart, SampleLogprobs
from app.engine.schedule.step_results import StepProgress
from app.runtime.clock import monotonic
from app.text.grammar.cache import GrammarCache
from app.text.tokens.tokenizer import Tokenizer
from training.guide.corpus import load_corpus

BLOCK_SIZE = 16
MAX_MODEL_LEN = 2048
VOCAB_SIZE = 1 << 17


class Spent:
    """Thread seconds of the step under way, of the model's stand-ins and of the output loop."""

    def __init__(self) -> None:
        self.model = self.output = 0.0


class NoGraph:
    """A step graph that computes nothing."""

    samples = None
    max_logit_rows = 1

    def __init__(self) -> None:
        self._logits = self.hidden_TD = torch.zeros(0, 0)

    def run(self, inputs: StepInputs) -> Tensor:
        return self._logits

    def logits(self, token_rows: Sequence[int]) -> Tensor:
        return self._logits


class TextSampler(Sampler):
    """Keeps rows like the engine's sampler, and returns the tokens of a text one after the other."""

    def __init__(self, text_ids: Sequence[int], spent: Spent) -> None:
        super().__init__(())
        self._text_ids = text_ids
        self._spent = spent
        self._found: dict[int, SampleLogprobs] = {}  # of rows that want log-probabilities
        self._place = 0

    def start(self, start: RowStart) -> None:
        super().start(start)
        self._found.pop(start.row, None)
        if k := start.sampling.num_logprobs:
            self._found[start.row] = SampleLogprobs(-1.0, 1, tuple(range(k)), (-1.0,) * k)

    def sample(
        self,
        logits_RV: Tensor,
        rows: Sequence[int],
        positions: Sequence[int],
        device_token_ids: Sequence[int] | None = None,
        allowed: Callable[[int], Tensor | None] = lambda index: None,
    ) -> list[tuple[int, SampleLogprobs | None]]:
        began = time.thread_time()
        first = self._place = (self._place + 1) % (len(self._text_ids) - len(rows))
        sampled = [(self._text_ids[first + i], self._found.get(row)) for i, row in enumerate(rows)]
        self._spent.model += time.thread_time() - began
        return sampled


class TimedOutput(OutputProcessor):
    """The real output loop, timed."""

    def __init__(self, scheduler: Scheduler, tokenizer: Tokenizer, spent: Spent) -> None:
        super().__init__(scheduler, tokenizer, ())
        self._spent = spent

    def process(self, progress: StepProgress, now: float) -> list[EngineEvent]:
        began = time.thread_time()
        events = super().process(progress, now)
        self._spent.output += time.thread_time() - began
        return events


class IdleEngine:
    """An engine over `num_blocks` KV blocks, and the thread seconds that it spends."""

    def __init__(
        self,
        *,
        num_blocks: int,
        max_num_seqs: int,
        max_tokens: int,
        is_caching: bool = True,
        max_model_len: int = MAX_MODEL_LEN,
    ) -> None:
        tokenizer = Tokenizer.load(FolderText(resolve("guide")))
        text_ids = tokenizer.encode("\n\n".join(load_corpus().answers.values()))
        self.spent = Spent()
        limits = SchedulerLimits(
            num_blocks=num_blocks,
            block_size=BLOCK_SIZE,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_tokens,
            max_model_len=max_model_len,
            enable_prefix_caching=is_caching,
            itl_target=3600.0,  # never reached, but checked for every chunk
        )
        batch = BatchState(max_num_seqs, -(-max_model_len // BLOCK_SIZE), max_tokens, BLOCK_SIZE)
        cache = KVCache(KVLayout(BLOCK_SIZE, 1, 1, 1, torch.float32), num_blocks)
        grammars = GrammarCache()
        masks = LocalMasks(grammars, SampleMasks(batch.buffers.masks, VOCAB_SIZE), (), 1)
        runner = CpuRunner(batch, NoGraph(), TextSampler(text_ids, self.spent), cache, ThreadChoice(1), masks)
        model_info = ModelInfo("idle", "0", max_model_len, num_blocks * BLOCK_SIZE, VOCAB_SIZE)
        scheduler = Scheduler(limits)
        self.engine = Engine(model_info, scheduler, runner, TimedOutput(scheduler, tokenizer, self.spent), grammars)

    def add(self, requests: Iterable[EngineRequest]) -> float:
        """Put requests in line; return the seconds that took."""
        began = time.thread_time()
        for request in requests:
            self.engine.add(request)
        return time.thread_time() - began

    def step(self) -> tuple[float, float]:
        """Take a step; return the seconds of the engine's own and of the output loop."""
        spent = self.spent
        spent.model = spent.output = 0.0
        began = time.thread_time()
        self.engine.step(monotonic())
        self.engine.stats()
        return time.thread_time() - began - spent.model - spent.output, spent.output

    def run(self, requests: Iterable[EngineRequest]) -> float:
        """Answer all requests; return the seconds that took, output included."""
        seconds = self.add(requests)
        while self.engine.has_ready_work:
            seconds += sum(self.step())
        return seconds
