"""vLLM's process of the benchmark `cpu`; run by the Python of `.peers/vllm`, which has nothing of Quire's needs.

Its recommended settings for a CPU: every core computes (automatic binding would give one of two away), tcmalloc and
Intel's OpenMP are preloaded, the model is compiled.
"""

from __future__ import annotations

import time
from typing import Any

import vllm
from vllm import LLM, SamplingParams

from benchmarks.side import serve


class VllmProgram:
    """One model at a time, through `LLM.generate`."""

    def __init__(self) -> None:
        self._llm: LLM | None = None

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Open a model, or generate and say how many seconds it took."""
        if request["do"] == "open":
            self._llm = LLM(request["model"], dtype="bfloat16", max_model_len=request["max_model_len"], seed=0)
            return {"version": vllm.__version__}
        return {"seconds": self._generate(request["prompts"], request["num_new_tokens"])}

    def _generate(self, prompts: list[list[int]], num_new_tokens: list[int]) -> float:
        assert self._llm is not None
        given = [{"prompt_token_ids": prompt} for prompt in prompts]
        params = [SamplingParams(temperature=0.0, max_tokens=new, ignore_eos=True) for new in num_new_tokens]
        start = time.perf_counter()
        outputs = self._llm.generate(given, params, use_tqdm=False)
        seconds = time.perf_counter() - start
        assert [len(output.outputs[0].token_ids) for output in outputs] == num_new_tokens, "an answer ended early"
        return seconds


if __name__ == "__main__":  # vLLM starts further processes, which import this file again
    serve(VllmProgram().answer)
