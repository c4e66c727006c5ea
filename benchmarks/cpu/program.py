"""Quire's process of the benchmark `cpu`: `python -m benchmarks.cpu.program` serves requests with `side.serve`.

It also measures the machine, so that what Quire reached and what could be reached come from the same process.
"""

from __future__ import annotations

import gc
import statistics
import time
from typing import Any

from app.contract.sampling_params import SamplingParams
from app.llm import LLM
from benchmarks.cpu.distinct_experts import counted
from benchmarks.cpu.instructions import use_kernels
from benchmarks.cpu.loading import passing_bytes, reset_peak
from benchmarks.cpu.probe import probe
from benchmarks.side import serve

WARM_UP_STEPS = 2  # with as many tokens as there are decodes: chunks of prompts, perhaps


class QuireProgram:
    """One model at a time, through `LLM.generate`."""

    def __init__(self) -> None:
        self._llm: LLM | None = None

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Do what the request's `do` says: open a model, generate, or measure the machine."""
        if request["do"] == "open":
            return self._open(request)
        if request["do"] == "probe":
            return probe(request["num_bytes"])._asdict()
        answers = (request["prompts"], request["num_new_tokens"], request.get("temperature", 0.0))
        if request["do"] == "count":
            return {"distinct": self._count(*answers)}
        return {"seconds": self._generate(*answers)}

    def _open(self, request: dict[str, Any]) -> dict[str, Any]:
        """Open a model in place of the one before; return the kernels, the seconds, and the bytes that did not stay.

        The last are the most memory meanwhile beyond what stays.
        """
        self._llm = None
        gc.collect()
        library = use_kernels(request.get("instruction_set"))
        reset_peak()
        start = time.perf_counter()
        self._llm = LLM(request["model"], **request["settings"])
        seconds = time.perf_counter() - start
        return {"kernels": library and library.instruction_set, "seconds": seconds, "passing_bytes": passing_bytes()}

    def _count(self, prompts: list[list[int]], num_new_tokens: list[int], temperature: float) -> list[float]:
        """Return how many experts of each layer have rows in a step of decodes alone, on average."""
        with counted() as steps:
            self._generate(prompts, num_new_tokens, temperature)
        decodes = [found for num_tokens, found in steps if num_tokens == len(prompts)][WARM_UP_STEPS:]
        return [statistics.mean(counts) for counts in zip(*decodes, strict=True)]

    def _generate(self, prompts: list[list[int]], num_new_tokens: list[int], temperature: float) -> float:
        """Return the seconds to generate the given numbers of tokens for all prompts, submitted at once."""
        assert self._llm is not None
        params = [
            SamplingParams(temperature=temperature, top_p=1.0, top_k=0, min_p=0.0, max_tokens=new, ignore_eos=True)
            for new in num_new_tokens
        ]
        start = time.perf_counter()
        outputs = self._llm.generate(prompts, params, use_tqdm=False)
        seconds = time.perf_counter() - start
        assert [len(output.outputs[0].token_ids) for output in outputs] == num_new_tokens, "an answer ended early"
        return seconds


if __name__ == "__main__":
    serve(QuireProgram().answer)
