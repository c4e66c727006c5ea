"""FP8 caches of models whose keys and values are far too large or small for e4m3, in Triton's interpreter."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from app.checkpoint.inspection import inspect
from app.checkpoint.text_files import FolderText
from app.config.settings import make_config
from app.contract.errors import ConfigurationError
from app.contract.events import TokenDelta
from app.engine import build as building
from app.engine.execute.gpu import backend as backends
from app.engine.execute.gpu import kv_calibration
from app.engine.execute.gpu.kv_calibration import calibrate, calibration_ids
from app.models.kv_scales import KVScales
from app.text.tokens.tokenizer import Tokenizer
from tests.checkpoints import damaged_copy, tiny
from tests.engine.driving import request
from tests.engine.execute.gpu.gpu_engine import build, run
from tests.models.test_kv_scales import with_tensors

PROMPT = list(range(10, 40))
Logprobs = list[dict[int, float]]


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter takes half a minute for the whole text."""
    monkeypatch.setattr(kv_calibration, "MAX_TOKENS", 40)


def answer(folder: Path, **settings: object) -> Logprobs:
    """The log-probabilities of the best tokens at each position of an answer."""
    engine = build(folder, **settings)
    events = engine.add(request(engine, "a", PROMPT, max_tokens=4, logprobs=20))
    events += run(engine)
    entries = [each for event in events if isinstance(event, TokenDelta) for each in event.logprobs]
    return [dict(zip(each.top_token_ids, each.top_logprobs, strict=True)) for each in entries]


def rescaled(tmp_path: Path, keys: tuple[float, float], values: tuple[float, float]) -> Path:
    """A Qwen2 with biases whose keys and values are so many times as large, by head, and whose answers are the same."""
    folder = damaged_copy(tiny("Qwen2"), tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    for layer in range(2):
        for head, (key, value) in enumerate(zip(keys, values, strict=True)):
            one, group = slice(16 * head, 16 * head + 16), slice(32 * head, 32 * head + 32)
            attention = f"model.layers.{layer}.self_attn."
            for name, rows, factor in (("q", group, 1 / key), ("k", one, key), ("v", one, value)):
                for part in ("weight", "bias"):
                    tensors[f"{attention}{name}_proj.{part}"][rows] *= factor
            tensors[f"{attention}o_proj.weight"][:, group] /= value
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.mark.long
def test_keys_beyond_the_range_of_e4m3_cost_no_bit_more_than_ordinary_ones(tmp_path):
    """Keys of some thousands and values of tens of thousands would all be cut at 448."""
    outliers = rescaled(tmp_path, keys=(256.0, 512.0), values=(4096.0, 1.0))
    assert answer(outliers, kv_cache_dtype="fp8") == answer(tiny("Qwen2"), kv_cache_dtype="fp8")


def best(found: Logprobs) -> list[int]:
    """The most likely tokens."""
    return [max(each, key=each.__getitem__) for each in found]


def worst(found: Logprobs, wanted: Logprobs) -> float:
    """The largest difference between log-probabilities of the first token."""
    return max(abs(found[0][token] - wanted[0][token]) for token in found[0].keys() & wanted[0].keys())


@pytest.mark.long
def test_an_fp8_cache_answers_nearly_like_one_of_the_models_type_and_would_not_without_scales(tmp_path, monkeypatch):
    folder = rescaled(tmp_path, keys=(300.0, 0.01), values=(300.0, 0.003))
    wanted, scaled = answer(folder), answer(folder, kv_cache_dtype="fp8")
    assert best(scaled) == best(wanted)
    monkeypatch.setattr(KVScales, "fold", lambda *given: None)
    assert worst(scaled, wanted) < 0.3 < worst(answer(folder, kv_cache_dtype="fp8"), wanted)


def seen_scales(monkeypatch: pytest.MonkeyPatch) -> list[KVScales]:
    """The scales that engines fold from now on."""
    seen: list[KVScales] = []
    fold = KVScales.fold

    def note(scales: KVScales, *rest: object) -> None:
        seen.append(scales)
        fold(scales, *rest)

    monkeypatch.setattr(KVScales, "fold", note)
    return seen


def test_the_scales_are_the_same_at_every_start_and_cover_the_text(tmp_path, monkeypatch):
    folder, seen = rescaled(tmp_path, keys=(300.0, 0.01), values=(300.0, 0.003)), seen_scales(monkeypatch)
    build(folder, kv_cache_dtype="fp8", max_num_seqs=2, max_num_batched_tokens=16)
    build(folder, kv_cache_dtype="fp8", max_num_seqs=1)
    one, other = seen
    assert torch.equal(one.keys_LG, other.keys_LG) and torch.equal(one.values_LG, other.values_LG)
    assert (one.keys_LG[:, 0] >= 4).all() and (one.keys_LG[:, 1] == 2**-5).all()
    assert (one.values_LG[:, 0] >= 1).all() and (one.values_LG[:, 1] == 2**-5).all()


def test_scales_of_the_checkpoint_come_before_calibrated_ones(tmp_path, monkeypatch):
    scales = {f"{layer}_{kind}_scale": torch.tensor(0.5 + layer) for layer in range(2) for kind in "kv"}
    folder, seen = with_tensors(tmp_path, **scales).path, seen_scales(monkeypatch)
    monkeypatch.setattr(building, "calibrate", None)  # a call would raise
    build(folder, kv_cache_dtype="fp8", max_num_seqs=1)
    assert seen[0].keys_LG.tolist() == seen[0].values_LG.tolist() == [[0.5, 0.5], [2.0, 2.0]]


def test_nothing_is_computed_before_the_kernels_are_compiled(monkeypatch):
    calls: list[str] = []
    monkeypatch.setattr(building, "calibrate", lambda *given: calls.append("calibrate") or calibrate(*given))
    warm_up = backends.warm_up
    monkeypatch.setattr(backends, "warm_up", lambda *given: calls.append("warm up") or warm_up(*given))
    build(tiny("Llama"), kv_cache_dtype="fp8", finish_kernels=lambda: calls.append("finish kernels"))
    assert calls == ["finish kernels", "calibrate", "finish kernels", "warm up"]


def test_other_caches_need_no_scales(monkeypatch):
    seen = seen_scales(monkeypatch)
    build(tiny("Llama", num_hidden_layers=1), max_num_seqs=1)
    assert not seen


def test_what_cannot_be_calibrated_is_rejected(tmp_path, monkeypatch):
    folder = damaged_copy(tiny("Llama"), tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.1.self_attn.v_proj.weight"][3, 3] = torch.nan
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ConfigurationError, match=r"fp8 needs scales.*layer 1 computes keys or values that are no fin"):
        build(folder, kv_cache_dtype="fp8")
    monkeypatch.setattr(building, "calibration_ids", lambda *given: [])
    with pytest.raises(ConfigurationError, match="makes no token of the calibration text"):
        build(tiny("Llama"), kv_cache_dtype="fp8")


def test_the_text_is_long_enough_to_be_cut(monkeypatch):
    monkeypatch.undo()
    folder = tiny("Llama")
    spec = inspect(make_config({"model": str(folder)}).model).spec
    ids = calibration_ids(Tokenizer.load(FolderText(folder)), spec)
    assert len(ids) == kv_calibration.MAX_TOKENS == 512 and max(ids) < spec.vocab_size
