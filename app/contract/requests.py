"""What goes from the event loop to the engine thread: requests and commands, as plain immutable data."""

from __future__ import annotations

from dataclasses import dataclass

from app.contract.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One client call, checked and tokenized: what the engine needs to know, and nothing of transports.

    `params` is resolved: no `None` in a model-dependent field, `max_tokens` and `seed` set (see `admission.admit`).
    Times are monotonic seconds: it must start by `start_deadline` and be complete by `deadline`. The lower the
    `priority`, the sooner its turn. KV blocks are shared only between requests of the same `tenant` (the API key's
    name) and `cache_salt`. Its `account` orders and bounds the work of its client, and says nothing of blocks.
    """

    id: str
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    arrival_time: float
    start_deadline: float | None = None
    deadline: float | None = None
    priority: int = 0
    tenant: str | None = None
    cache_salt: str | None = None
    account: str = ""


@dataclass(frozen=True, slots=True)
class Submit:
    """Start working on a request."""

    request: EngineRequest


@dataclass(frozen=True, slots=True)
class Abort:
    """Drop a request and free what it holds; unknown and finished ids are ignored."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Pause:
    """Stop scheduling a request; it keeps its blocks."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Resume:
    """Schedule a paused request again."""

    request_id: str


EngineCommand = Submit | Abort | Pause | Resume
