"""KV memory: wasted slots, and blocks saved by sharing, beside the figures of the PagedAttention paper.

`python -m benchmarks memory` writes `results/memory.json` and `results/memory.svg` beside this file, and exits 1 when
a figure misses its limit. It counts blocks and takes no times, so its figures are the same on every machine (beams
depend on the last bits of matrix products). It takes about four minutes of one core.

- Waste, parallel sampling and shared prefixes: the engine's scheduler with a model that computes nothing, under the
  length models of `lengths.py`, in the paper's memory (15,700 KV slots), with outputs of the sampled length.
- Contiguous reservation: `buddy.py`, the same load in the same memory.
- Beam search: the complete engine with the embedded model, since sharing by beams depends on probabilities. Its
  prompts are pieces of the text that the model was trained on.

Waste is 1 - filled slots / slots of the blocks in use, or of all memory. Saved is 1 - blocks in use / blocks in
use if nothing were shared. All are averages over the steps of a server at work, whose memory or seats are full.
"""

import argparse
import random
from collections.abc import Iterator, Sequence
from itertools import chain
from statistics import mean
from typing import NamedTuple

from app import LLM, SamplingParams
from app.commands.options import Parser
from app.contract.admission import admit
from app.contract.requests import EngineRequest
from app.loadgen import plots
from app.loadgen.lengths import LengthModel, Lengths
from benchmarks import buddy
from benchmarks.figures import RESULTS, write_json
from benchmarks.kv_load import NUM_BLOCKS, NUM_SLOTS, Usage, answer, make_requests, make_scheduler, measure, steady
from benchmarks.lengths import ALPACA, SHAREGPT, draw
from benchmarks.limits import Verdict, conclude, judge
from benchmarks.memory_chart import chart
from training.guide.corpus import load_corpus

PAPER = "Kwon et al., Efficient Memory Management for LLM Serving with PagedAttention, SOSP 2023, arXiv 2309.06180"
WIDTHS = (2, 4, 6)
ALPACA_TIMES = 4  # so many more requests, which are that much shorter
GUIDE_CONTEXT = 2048
BEAM_REQUESTS_AT_ONCE = 8

# What the paper measured with OPT-13B. Figure 2 (ShareGPT): 1 - token states; figure 13a: batched requests.
PAPER_WASTE = {"max": 0.796, "pow2": 0.732, "oracle": 0.618, "paged": 0.037}
PAPER_AT_ONCE = {"max": 7.00, "pow2": 9.81, "oracle": 13.62, "paged": 30.42}
# Section 6.3: figure 15 for Alpaca; of ShareGPT the text gives the range alone, whose ends must be 2 and 6 sequences.
PAPER_PARALLEL = {ALPACA: (0.0609, 0.0853, 0.0979), SHAREGPT: (0.162, None, 0.305)}
PAPER_BEAMS = {ALPACA: (0.3756, 0.5313, 0.5516), SHAREGPT: (0.443, None, 0.663)}
# Section 6.4 has a prefix of 80 tokens (one example) and one of 341 (five); the chat prompt is ours.
PREFIXES = (("1-shot, 80 tokens", 80, ALPACA), ("5-shot, 341 tokens", 341, ALPACA), ("chat, 512 tokens", 512, SHAREGPT))
RESERVED = {"max": "whole context", "pow2": "next power of two", "oracle": "length known before"}


class Figure(NamedTuple):
    """One measured figure, the paper's for the same thing, and the name of what is required of it."""

    section: str
    load: str
    name: str
    value: float
    paper: float | None = None
    limit: str = ""

    @property
    def verdict(self) -> Verdict | None:
        """The figure held against its limit; None where nothing is required."""
        return judge("memory", self.limit, self.value, self.name) if self.limit else None

    def to_json(self) -> dict[str, object]:
        """Return all of it."""
        found = self.verdict
        limit = {} if found is None else {found.limit.sign: found.limit.value}
        known = {name: value for name, value in self._asdict().items() if name != "limit"}
        return {**known, "limit": limit, "is_met": found is None or found.is_met}


def waste(num_requests: int) -> Iterator[Figure]:
    """Compare blocks with contiguous reservations."""
    load = draw(SHAREGPT, num_requests)
    usages = answer(make_scheduler(), make_requests(load))
    full = steady(usages)
    reserved = {policy: buddy.run(load, policy, NUM_SLOTS) for policy in buddy.POLICIES}
    name = SHAREGPT.name
    for policy, steps in reserved.items():
        value = mean(1 - step.num_filled / NUM_SLOTS for step in steps)
        yield Figure("waste of the whole memory", name, RESERVED[policy], value, PAPER_WASTE[policy])
    value = mean(1 - usage.num_filled / NUM_SLOTS for usage in full)
    yield Figure("waste of the whole memory", name, "blocks", value, PAPER_WASTE["paged"])
    for policy, steps in reserved.items():
        value = mean(1 - step.num_filled / step.num_reserved for step in steps)
        yield Figure("waste of what is taken", name, RESERVED[policy], value)
    worst = max(mean(usage.waste for usage in some) for some in (usages, full))
    yield Figure("waste of what is taken", name, "blocks", worst, limit="waste of what is taken")
    short = steady(answer(make_scheduler(), make_requests(_load(ALPACA, num_requests))))
    yield Figure("waste of what is taken", ALPACA.name, "blocks", mean(usage.waste for usage in short))
    for policy, steps in reserved.items():
        value = mean(step.num_running for step in steps)
        yield Figure("requests at once", name, RESERVED[policy], value, PAPER_AT_ONCE[policy])
    value = mean(usage.num_sequences for usage in full)
    yield Figure("requests at once", name, "blocks", value, PAPER_AT_ONCE["paged"])


def parallel_sampling(num_requests: int) -> Iterator[Figure]:
    """Count what n answers to one prompt share."""
    for model, paper in PAPER_PARALLEL.items():
        for n, figure in zip(WIDTHS, paper, strict=True):
            usages = answer(make_scheduler(), make_requests(_load(model, num_requests), n=n))
            yield _saved("parallel sampling", model, f"n = {n}", usages, figure, is_required=True)


def shared_prefixes(num_requests: int) -> Iterator[Figure]:
    """Count what requests with the same beginning share through the prefix cache."""
    rng = random.Random(2)
    for name, num_tokens, model in PREFIXES:
        prefix = tuple(rng.randrange(50_000) for _ in range(num_tokens))
        scheduler = make_scheduler(max_model_len=num_tokens + 2049)
        usages = answer(scheduler, make_requests(_load(model, num_requests), prefix=prefix))
        yield _saved("shared prefix", model, name, usages)


def beam_search(num_requests: int) -> Iterator[Figure]:
    """Count what beams share."""
    for model, paper in PAPER_BEAMS.items():
        for width, figure in zip(WIDTHS, paper, strict=True):
            usages = _run_beams(model, num_requests, width)
            yield _saved("beam search", model, f"width {width}", usages, figure, is_required=True)


def _run_beams(model: LengthModel, num_requests: int, width: int) -> list[Usage]:
    seats = BEAM_REQUESTS_AT_ONCE * width
    guide = LLM("guide", num_kv_blocks=NUM_BLOCKS, max_num_seqs=seats, max_num_batched_tokens=2048, itl_target=0)
    engine, rng = guide.engine, random.Random(3)
    ids = guide.tokenizer.encode("\n\n".join(load_corpus().answers.values()))
    for number, (num_prompt, num_answer) in enumerate(_load(model, num_requests)):
        begin = rng.randrange(len(ids) - num_prompt)
        prompt = tuple(ids[begin : begin + num_prompt])
        num_new = min(num_answer, GUIDE_CONTEXT - num_prompt)
        params = SamplingParams(use_beam_search=True, beam_width=width, max_tokens=num_new, ignore_eos=True)
        engine.add(EngineRequest(f"r{number}", prompt, admit(prompt, params, engine.model_info), 0.0))
    usages = []
    while engine.has_ready_work:
        engine.step(0.0)  # the time does not advance, so that there is no overload
        if engine.scheduler.queues.running:
            usages.append(measure(engine.scheduler))
    guide.close()
    return usages


def _load(model: LengthModel, num_requests: int) -> list[Lengths]:
    return draw(model, num_requests * (ALPACA_TIMES if model is ALPACA else 1))


def _saved(
    section: str,
    model: LengthModel,
    name: str,
    usages: Sequence[Usage],
    paper: float | None = None,
    *,
    is_required: bool = False,
) -> Figure:
    value = mean(usage.saved for usage in steady(usages))
    return Figure(section, model.name, name, value, paper, f"{section}, {model.name}" if is_required else "")


def _line(figure: Figure) -> str:
    show = "{:.1f}".format if figure.section == "requests at once" else "{:.1%}".format
    paper, verdict = "" if figure.paper is None else f", paper {show(figure.paper)}", figure.verdict
    missed = "" if verdict is None or verdict.is_met else f", {verdict.limit}: MISSED"
    return f"{figure.section}, {figure.load}, {figure.name}: {show(figure.value)}{paper}{missed}"


def add_options(parser: Parser) -> None:
    """Add how large the loads are."""
    parser.add_argument("--requests", type=int, default=1000, help="requests of each other load, default 1000")
    parser.add_argument("--beam-requests", type=int, default=32, help="requests of each beam search, default 32")


def run(args: argparse.Namespace) -> int:
    """Measure everything, write the figures and the picture, and judge."""
    sections = (waste, parallel_sampling, shared_prefixes)
    figures = []
    for figure in chain(*(section(args.requests) for section in sections), beam_search(args.beam_requests)):
        figures.append(figure)
        print(_line(figure), flush=True)
    found = [figure.to_json() for figure in figures]
    written = {"benchmark": "memory", "paper": PAPER, "requests": args.requests, "beam_requests": args.beam_requests}
    write_json(RESULTS / "memory.json", {**written, "figures": found})
    plots.save(chart(found), RESULTS / "memory.svg")
    print(plots.written(RESULTS / "memory.json", RESULTS / "memory.svg"))
    return conclude(verdict for figure in figures if (verdict := figure.verdict))
