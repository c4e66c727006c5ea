"""The ways to compute one model that are compared: Quire's, and llama.cpp's formats of the same weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

from app.checkpoint.inspection import inspect
from app.checkpoint.model_files import GGUF
from app.config.settings import make_config
from app.text.entry.frontend import TextFrontend
from app.text.tokens.tokenizer import Tokenizer
from benchmarks.perplexity.ggml import Q8Ops, rounded
from benchmarks.perplexity.scored_model import ScoredModel
from benchmarks.perplexity.weights import MemorySource, Weights, read_weights, rescaled

BF16, INT8, INT4, INT8_KV, FILE = "bf16", "int8", "int4", "int8 KV cache", "GGUF file"
Q8_0, Q8_0_WEIGHTS, Q4_1, Q4_0 = "q8_0 as in llama.cpp", "Q8_0 weights", "Q4_1 weights", "Q4_0 weights"
MAX_DIFFERENCE = 1e-3

Way = tuple[str, Callable[[], ScoredModel]]


class ModelWays:
    """A model, rescaled and rounded to bf16 as checkpoints are, and what loads it in each way."""

    def __init__(self, model: str) -> None:
        """Open a model by its name or path; blocks, and downloads what is not there."""
        self._model = model
        self._files = inspect(make_config({"model": model}).model)
        self._weights: Weights = read_weights(self._files)

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's."""
        return TextFrontend.load(make_config({"model": self._model}).model, self._files.text).tokenizer

    def rescale(self, window: list[int], seed: int = 0) -> float:
        """Rescale the weights; return the largest difference of float32 logits that this makes in a window of text."""
        exact = {"dtype": "float32"}
        before = self._load(exact).logits(window).clone()
        self._weights = rescaled(self._weights, self._files.spec, seed)
        difference = float((self._load(exact).logits(window) - before).abs().max())
        self._weights = {name: tensor.bfloat16() for name, tensor in self._weights.items()}
        return difference

    def all(self) -> Iterator[Way]:
        """Yield the name of each way and what loads it: the reference first, and what others are compared with."""
        yield BF16, self._load
        yield Q8_0, lambda: self._load({"dtype": "float32", "enforce_eager": True}, "Q8_0", Q8Ops())
        for name, kind in ((Q8_0_WEIGHTS, "Q8_0"), (Q4_1, "Q4_1"), (Q4_0, "Q4_0")):
            yield name, partial(self._load, kind=kind)
        yield INT8, partial(self._load, {"quantization": "int8"})
        yield INT4, partial(self._load, {"quantization": "int4"})
        yield INT8_KV, partial(self._load, {"kv_cache_dtype": "int8"})
        if self._files.format == GGUF:
            yield FILE, lambda: ScoredModel({"model": self._model, "dtype": "bfloat16"})

    def _load(
        self, settings: Mapping[str, object] | None = None, kind: str = "", ops: Q8Ops | None = None
    ) -> ScoredModel:
        weights = rounded(self._weights, kind) if kind else self._weights
        return ScoredModel({"model": self._model, "dtype": "bfloat16", **(settings or {})}, MemorySource(weights), ops)
