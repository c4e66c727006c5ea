"""Quire's process of the benchmark `cpu`: `python -m benchmarks.cpu.program` serves requests with `side.serve`.

It also measures the machine, so that what Quire reached and what could be reached come from the same process.
"""

from __future__ import annotations

import time
from typing import Any

from app.contract.sampling_params import SamplingParams
from app.llm import LLM
from benchmarks.cpu.instructions import use_kernels
from benchmarks.cpu.probe import probe
from benchmarks.side import serve


class QuireProgram:
    """One model at a time, through `LLM.generate`."""

    def __init__(self) -> None:
        self._llm: LLM | None = None

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Do what the request's `do` says: open a model, generate, or measure the machine."""
        if request["do"] == "open":
            library = use_kernels(request.get("instruction_set"))
            self._llm = LLM(request["model"], **request["settings"])
            return {"kernels": library and library.instruction_set}
        if request["do"] == "probe":
            return probe(request["num_bytes"])._asdict()
        return {"seconds": self._generate(request["prompts"], request["num_new_tokens"])}

    def _generate(self, prompts: list[list[int]], num_new_tokens: list[int]) -> float:
        """Return the seconds to generate the given numbers of tokens for all prompts, submitted at once."""
        assert self._llm is not None
        params = [SamplingParams(temperature=0.0, max_tokens=new, ignore_eos=True) for new in num_new_tokens]
        start = time.perf_counter()
        outputs = self._llm.generate(prompts, params, use_tqdm=False)
        seconds = time.perf_counter() - start
        assert [len(output.outputs[0].token_ids) for output in outputs] == num_new_tokens, "an answer ended early"
        return seconds


if __name__ == "__main__":
    serve(QuireProgram().answer)
