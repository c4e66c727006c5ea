"""An `LLM` among threads, in a `with` block, and what the package offers beside it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import app
from app.contract.errors import ContextLengthExceeded
from app.contract.sampling_params import SamplingParams
from app.llm import LLM
from tests.checkpoints import tiny

GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    torch.set_num_threads(1)
    with LLM(str(tiny("Llama")), num_kv_blocks=64) as loaded:
        yield loaded


def test_an_error_names_the_prompt_of_several(llm: LLM):
    with pytest.raises(ContextLengthExceeded) as of_many:
        llm.generate([[5], [5] * 5000, [6]], GREEDY, use_tqdm=False)
    with pytest.raises(ContextLengthExceeded) as of_one:
        llm.generate([[5] * 5000], GREEDY, use_tqdm=False)
    assert of_many.value.__notes__ == ["This is prompt 2 of 3."] and not hasattr(of_one.value, "__notes__")


def test_threads_take_turns(llm: LLM):
    alone = llm.generate([[5, 6]], GREEDY, use_tqdm=False)[0].outputs[0].token_ids
    with ThreadPoolExecutor(4) as threads:
        found = [*threads.map(lambda _: llm.generate([[5, 6]] * 3, GREEDY, use_tqdm=False), range(8))]
    assert all(each.outputs[0].token_ids == alone for results in found for each in results)


def test_a_block_drops_its_model_at_the_end():
    with LLM(str(tiny("Llama")), num_kv_blocks=16) as llm:
        assert llm.generate([[5, 6]], GREEDY, use_tqdm=False)
    with pytest.raises(app.QuireError, match="this LLM was closed"):
        llm.generate([[5, 6]], GREEDY, use_tqdm=False)


def test_what_is_loaded_on_access_is_listed():
    assert set(app.__all__) <= set(dir(app)) and all(getattr(app, name) for name in app.__all__)
