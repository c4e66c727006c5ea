"""Requests and commands, which the event loop sends to the engine thread, as plain immutable data."""

from __future__ import annotations

from dataclasses import dataclass

from app.contract.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One client call, checked and tokenized, independent of its transport.

    `params` is resolved: no `None` in a model-dependent field, `max_tokens` and `seed` set (see `admission.admit`).
    Times are monotonic seconds: the request must start by `start_deadline` and be complete by `deadline`. Requests with
    a lower `priority` are scheduled earlier. KV blocks are shared only between requests of the same `tenant` (the name
    of the API key) and `cache_salt`. The scheduler orders and limits requests by `account`.
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
    """Add a request to the queue."""

    request: EngineRequest


@dataclass(frozen=True, slots=True)
class Abort:
    """Drop a request and free its blocks; unknown and finished ids are ignored."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Pause:
    """Stop scheduling a request; it keeps its blocks until others need them."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Resume:
    """Schedule a paused request again."""

    request_id: str


EngineCommand = Submit | Abort | Pause | Resume
