"""What quantization costs `guide` in quality: its perplexity on the answers to questions that it never saw.

`python -m benchmarks perplexity` writes `results/perplexity.json`, and exits 1 when a limit is missed: int8 weights
must stay within 1 % of the plain model, int4 weights within 3 %.

Question and answer go through the engine's own step graph in one chunk of which every token is a logit row. The KV
cache is written and read as in any other chunk.
"""

import argparse
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from app.checkpoint.folder import EMBEDDED
from app.checkpoint.inspection import inspect
from app.checkpoint.names import resolve
from app.commands.options import Parser
from app.commands.throughput import machine
from app.config.settings import ModelConfig, make_config
from app.engine.execute.cpu.backend import HostBackend
from app.engine.execute.cpu.batch import BatchState
from app.engine.execute.cpu.graph import HostGraph
from app.engine.execute.kv_cache import KVCache
from app.engine.execute.selection import select_backend
from app.engine.schedule.step_plan import Chunk, Chunks, StepPlan, TableWrite
from app.models.loader import load_weights
from app.models.parallel import ParallelContext
from app.models.sources import open_source
from app.text.frontend import TextFrontend
from benchmarks.figures import RESULTS, write_json
from benchmarks.limits import Verdict, conclude, judge, limits
from training.guide.corpus import load_corpus

PLAIN = "plain"
WAYS: dict[str, dict[str, object]] = {
    PLAIN: {},
    "int8 weights": {"quantization": "int8"},
    "int4 weights": {"quantization": "int4"},
    "int8 KV cache": {"kv_cache_dtype": "int8"},
    "int8 weights and KV cache": {"quantization": "int8", "kv_cache_dtype": "int8"},
}
MAX_TOKENS = 512
NUM_BLOCKS = MAX_TOKENS // 16


class Text(NamedTuple):
    """A question as the model sees it, and the tokens of its answer."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]


class Score(NamedTuple):
    """How likely a model finds some answers."""

    perplexity: float
    num_tokens: int


def held_out_texts(every: int = 1) -> list[Text]:
    """Return every n-th held-out question with the answer of its topic, in the chat template of `guide`."""
    corpus, template = load_corpus(), TextFrontend.load(ModelConfig(), resolve(EMBEDDED)).chat_template
    assert template is not None
    texts = []
    for item in corpus.held_out[::every]:
        question: dict[str, object] = {"role": "user", "content": item.question}
        answer: dict[str, object] = {"role": "assistant", "content": corpus.answers[item.topic]}
        prompt = template.render([question])
        full = template.render([question, answer], add_generation_prompt=False)
        assert full[: len(prompt)] == prompt
        texts.append(Text(tuple(prompt), tuple(full[len(prompt) :])))
    return texts


@torch.inference_mode()
def score(texts: Sequence[Text], **settings: object) -> Score:
    """Return how likely `guide`, loaded with `settings`, finds the answers of `texts`."""
    graph, batch = make_graph(**settings)
    total, num_tokens = 0.0, 0
    for text in texts:
        token_ids = text.prompt + text.answer[:-1]
        chunk, blocks = Chunk(1, 1, 0, token_ids), tuple(range(1, NUM_BLOCKS + 1))
        rows = tuple(range(len(text.prompt) - 1, len(token_ids)))
        plan = StepPlan(1, Chunks.of([chunk]), rows, (), table_writes=(TableWrite(1, 0, blocks),))
        logits_RV = graph.run(batch.apply(plan))[: len(rows)]
        logprobs_RV = torch.log_softmax(logits_RV.double(), dim=-1)
        total -= float(logprobs_RV.gather(1, torch.tensor(text.answer)[:, None]).sum())
        num_tokens += len(rows)
    return Score(math.exp(total / num_tokens), num_tokens)


def make_graph(**settings: object) -> tuple[HostGraph, BatchState]:
    """Return the step of `guide` and its state, with room for one sequence of MAX_TOKENS that are all logit rows."""
    sizes = {"max_num_seqs": MAX_TOKENS, "max_num_batched_tokens": MAX_TOKENS, "max_model_len": MAX_TOKENS}
    config = make_config({"device": "cpu", **sizes, **settings})
    files, spec = inspect(config.model)
    backend = select_backend(config, spec)
    assert isinstance(backend, HostBackend), "this benchmark runs on the CPU"
    with open_source(files, spec) as source:
        weights = load_weights(spec, source, ParallelContext(), packer=backend.packer)
    cache = KVCache(backend.kv_layout(), NUM_BLOCKS, 0, backend.ops)
    batch = BatchState(MAX_TOKENS, NUM_BLOCKS, MAX_TOKENS, config.cache.block_size)
    return backend.make_graph(weights, cache.layers, batch, backend.make_arena()), batch


def excess(scored: Score, plain: Score) -> float:
    """Return by which share a perplexity is higher than the plain model's; below 0 if it is lower."""
    return scored.perplexity / plain.perplexity - 1


def add_options(parser: Parser) -> None:
    """Add how many questions."""
    parser.add_argument("--every", type=int, default=1, metavar="N", help="every N-th question only; writes nothing")


def run(args: argparse.Namespace) -> int:
    """Score every way, print one line each, write the results and judge them."""
    texts = held_out_texts(args.every)
    scores: dict[str, Score] = {}
    for name, settings in WAYS.items():
        scores[name] = score(texts, **settings)
        print(f"{name:<26} {scores[name].perplexity:.4f} {excess(scores[name], scores[PLAIN]):+8.2%}", flush=True)
    verdicts = [judge("perplexity", name, excess(scores[name], scores[PLAIN])) for name in limits("perplexity")]
    if args.every == 1:
        write(scores, len(texts), verdicts)
    return conclude(verdicts)


def write(scores: dict[str, Score], num_questions: int, verdicts: Sequence[Verdict]) -> None:
    """Write what was measured."""
    result = {
        "benchmark": "perplexity",
        "model": EMBEDDED,
        "machine": machine(),
        "questions": num_questions,
        "tokens": scores[PLAIN].num_tokens,
        "limits": {verdict.limit.name: verdict.limit.value for verdict in verdicts},
        "missed": [verdict.limit.name for verdict in verdicts if verdict.is_missed],
        "ways": [
            {"way": name, "perplexity": scored.perplexity, "excess": excess(scored, scores[PLAIN])}
            for name, scored in scores.items()
        ],
    }
    write_json(RESULTS / "perplexity.json", result)
