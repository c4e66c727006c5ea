"""On a CPU too, a request whose logits are no numbers fails, and the others do not notice."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from app.contract.events import RequestFailed
from tests.checkpoints import damaged_copy, tiny
from tests.engine.driving import Run, build, request

NAN_TOKEN = 300


def damaged(tmp_path: Path) -> Path:
    """A model with one token that makes everything behind it NaN."""
    folder = damaged_copy(tiny("Llama"), tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    tensors["model.embed_tokens.weight"][NAN_TOKEN] = torch.nan
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("is_eager", [False, True])
@pytest.mark.parametrize(
    "params",
    [{}, {"temperature": 1.0, "seed": 1}, {"logprobs": 3}, {"use_beam_search": True, "beam_width": 2}],
    ids=str,
)
def test_a_request_whose_logits_are_no_numbers_fails_alone(params, is_eager, tmp_path, caplog):
    folder = damaged(tmp_path)
    alone = Run(build(folder, enforce_eager=is_eager))
    alone.add(request(alone.engine, "good", [5, 6, 7], max_tokens=8))
    alone.finish()
    both = Run(build(folder, enforce_eager=is_eager))
    both.add(request(both.engine, "good", [5, 6, 7], max_tokens=8))
    both.step(2)
    both.add(request(both.engine, "bad", [7, 8, NAN_TOKEN], max_tokens=8, **params))
    both.finish()
    assert both.tokens("good") == alone.tokens("good")
    end = both.end("bad")
    assert isinstance(end, RequestFailed) and "its logits are no numbers (NaN)" in end.error.message
    stats = both.engine.stats()
    assert stats.num_nan_requests == 1 and stats.recovery.num_faults == 0
    assert stats.blocks.num_free == stats.blocks.num_blocks
    assert sum("(NaN)" in record.message for record in caplog.records) == 1


@pytest.mark.parametrize("settings", [{}, {"dtype": "bfloat16"}, {"enforce_eager": True}], ids=str)
def test_a_request_fails_whatever_token_of_its_prompt_is_no_number(settings, tmp_path):
    """A key that is no number makes the sums of all later rows none, and a row of another sequence does not see it."""
    run = Run(build(damaged(tmp_path), max_num_seqs=4, max_num_batched_tokens=16, **settings))
    prompts = {"first": [NAN_TOKEN, *range(40)], "middle": [*range(20), NAN_TOKEN, *range(20)], "none": [*range(41)]}
    for name, prompt in prompts.items():
        run.add(request(run.engine, name, prompt, max_tokens=3))
    run.finish()
    failed = {name for name in prompts if isinstance(run.end(name), RequestFailed)}
    assert failed == {"first", "middle"} and run.engine.num_nan_requests == 2
