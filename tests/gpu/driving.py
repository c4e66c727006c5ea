"""The GPU, and engines on it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from app.config.settings import make_config
from app.contract.admission import admit
from app.contract.events import EngineEvent, TokenDelta
from app.contract.requests import EngineRequest
from app.contract.sampling_params import SamplingParams
from app.engine.build import build_engine
from app.engine.engine import Engine

CUDA = torch.device("cuda", 0)


def noise(*shape: int, dtype: torch.dtype = torch.bfloat16, scale: float = 1.0) -> Tensor:
    """Normal random numbers on the device, different in every run."""
    return (torch.randn(shape, device=CUDA) * scale).to(dtype)


def unwritten(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """An output that no kernel has written to: NaN."""
    return torch.full(shape, float("nan"), dtype=dtype, device=CUDA)


def build(folder: Path, **settings: object) -> Engine:
    """An engine on the device."""
    defaults = {"device": "cuda", "dtype": "auto", "num_kv_blocks": 256, "max_num_seqs": 32, "seed": 0}
    defaults["itl_target"] = (
        0.0  # otherwise the size of chunks, and so the last bits of products, would depend on the clock
    )
    return build_engine(make_config({"model": str(folder), **defaults, **settings}))


def build_on_cpu(folder: Path, **settings: object) -> Engine:
    """An engine on the CPU, over torch's operations: our own kernels for it would have to be compiled."""
    return build(folder, device="cpu", enforce_eager=True, **settings)


def capture_all(engine: Engine) -> None:
    """Capture every graph."""
    while engine.work_idly():
        pass


def request(engine: Engine, name: str, prompt: Sequence[int], **params: object) -> EngineRequest:
    """A request admitted as by the API; greedy and ignoring EOS by default."""
    given = SamplingParams(**{"temperature": 0.0, "ignore_eos": True, "max_tokens": 16, **params})
    return EngineRequest(name, tuple(prompt), admit(prompt, given, engine.model_info), 0.0)


def run_requests(engine: Engine, requests: Sequence[EngineRequest], apart: int = 0) -> dict[str, list[int]]:
    """Run requests, each `apart` steps after the one before; return the tokens by request id."""
    events: list[EngineEvent] = []
    for each in requests:
        events += engine.add(each)
        for _ in range(apart):
            events += engine.step(0.0)
    for _ in range(20_000):
        if not engine.has_ready_work:
            break
        events += engine.step(0.0)
        engine.scheduler.check_integrity()
    tokens: dict[str, list[int]] = {each.id: [] for each in requests}
    for event in events:
        if isinstance(event, TokenDelta):
            tokens[event.request_id] += event.token_ids
    return tokens
