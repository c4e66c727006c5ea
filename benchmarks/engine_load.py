"""For benchmarks without a server: models with random weights, and new prompts."""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app import LLM, SamplingParams
from app.commands.measuring.workload import SHAPES
from app.contract.admission import admit
from app.contract.requests import EngineRequest
from app.engine.engine import Engine
from app.runtime.clock import monotonic


def load_model(model: str | Mapping[str, object], **settings: Any) -> LLM:
    """Load a known shape, or a config.json, with random weights; any other name as it is."""
    config = SHAPES.get(model) if isinstance(model, str) else model
    if config is None:
        return LLM(str(model), **settings)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config))
        return LLM(folder, load_format="dummy", **settings)


def greedy(num_new: int) -> SamplingParams:
    """Ask for exactly `num_new` tokens, the likeliest ones."""
    return SamplingParams(temperature=0.0, max_tokens=num_new, ignore_eos=True)


def add(engine: Engine, request_id: str, num_prompt: int, params: SamplingParams, rng: random.Random) -> None:
    """Submit a random prompt."""
    prompt = tuple(rng.randrange(engine.model_info.vocab_size) for _ in range(num_prompt))
    engine.add(EngineRequest(request_id, prompt, admit(prompt, params, engine.model_info), monotonic()))
