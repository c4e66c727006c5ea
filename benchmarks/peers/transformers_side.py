"""The process of transformers in the benchmark `cpu`: continuous batching, one static batch, or one request by one.

Its recommended settings for a CPU: SDPA attention, a KV cache, inference mode; all cores.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig

from benchmarks.side import serve

NO_EOS = -1
KV_ITEM_BYTES = 2


class TransformersProgram:
    """One model at a time, in three ways."""

    def __init__(self) -> None:
        self._model: Any = None
        self._num_blocks = 0

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Open a model, or generate in one of the ways and say how many seconds it took."""
        if request["do"] == "open":
            auto: Any = AutoModelForCausalLM
            self._model = auto.from_pretrained(
                request["model"], dtype=torch.bfloat16, attn_implementation="sdpa"
            ).eval()
            self._num_blocks = request["kv_cache_bytes"] // self._block_bytes()
            for way in (self._continuous, self._one_by_one):  # what the first call alone does is not measured
                way([[0] * 8], [2])
            return {"version": transformers.__version__}
        way = {"continuous": self._continuous, "static": self._static, "one by one": self._one_by_one}[request["how"]]
        return {"seconds": way(request["prompts"], request["num_new_tokens"])}

    def _continuous(self, prompts: Sequence[list[int]], num_new_tokens: Sequence[int]) -> float:
        """The manager behind `generate_batch`, which itself knows one answer length for all requests only."""
        make_config: Any = GenerationConfig
        config = make_config(do_sample=False, eos_token_id=NO_EOS, pad_token_id=0)
        sizes = ContinuousBatchingConfig(num_blocks=self._num_blocks)  # or it takes nine tenths of the memory
        with self._model.continuous_batching_context_manager(
            config, continuous_batching_config=sizes, persistent_manager=True
        ) as manager:
            start = time.perf_counter()
            for prompt, new in zip(prompts, num_new_tokens, strict=True):
                manager.add_request(prompt, max_new_tokens=new, eos_token_id=NO_EOS)
            lengths: list[int] = []
            while len(lengths) < len(prompts):
                result = manager.get_result(timeout=1)
                if result is not None and result.is_finished():
                    lengths.append(len(result.generated_tokens))
                elif result is None and not manager.is_running():
                    raise RuntimeError("continuous batching ended early")
            seconds = time.perf_counter() - start
        assert sorted(lengths) == sorted(num_new_tokens), "an answer ended early"
        return seconds

    def _block_bytes(self) -> int:
        """Return the bytes of one block of the cache of continuous batching: a page in each layer."""
        config = self._model.config
        per_token = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * KV_ITEM_BYTES
        return int(per_token * ContinuousBatchingConfig().page_size)

    def _static(self, prompts: Sequence[list[int]], num_new_tokens: Sequence[int]) -> float:
        """All at once, padded to the longest prompt, until the longest answer is done."""
        longest = max(map(len, prompts))
        ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        start = time.perf_counter()
        self._generate(ids, mask, max(num_new_tokens))
        return time.perf_counter() - start

    def _one_by_one(self, prompts: Sequence[list[int]], num_new_tokens: Sequence[int]) -> float:
        start = time.perf_counter()
        for prompt, new in zip(prompts, num_new_tokens, strict=True):
            ids = torch.tensor([prompt])
            self._generate(ids, torch.ones_like(ids), new)
        return time.perf_counter() - start

    def _generate(self, ids: torch.Tensor, mask: torch.Tensor, num_new: int) -> None:
        with torch.inference_mode():
            output = self._model.generate(
                ids,
                attention_mask=mask,
                do_sample=False,
                min_new_tokens=num_new,
                max_new_tokens=num_new,
                pad_token_id=0,
                use_cache=True,
            )
        assert output.shape[1] == ids.shape[1] + num_new, "an answer ended early"


if __name__ == "__main__":
    serve(TransformersProgram().answer)
