"""Messages between threads are plain data: they survive a JSON round trip unchanged."""

from __future__ import annotations

import msgspec
import pytest

from app.contract.engine_counts import QueueCounts
from app.contract.engine_status import EngineHealth, EngineState, EngineStats, ModelInfo
from app.contract.errors import ErrorInfo
from app.contract.events import ChoiceEnd, Finished, FinishReason, RequestFailed, Timings, TokenDelta, Usage
from app.contract.packed_logprobs import Logprobs, TokenLogprobs
from app.contract.requests import Abort, EngineRequest, Pause, Resume, Submit
from app.contract.sampling_params import SamplingParams

PARAMS = SamplingParams(
    temperature=0.5, stop=("a", "b"), logit_bias={3: -1.5}, seed=2**64 - 1, max_tokens=7, logprobs=2
)
REQUEST = EngineRequest("id", (1, 2, 3), PARAMS, 1.25)
ENTRY = TokenLogprobs(5, -0.25, 1, (5, 6), (-0.25, -1.5))

MESSAGES = [
    REQUEST,
    TokenDelta("id", 0, 4, (5, 6), "text", Logprobs.of([ENTRY, ENTRY], 2)),
    TokenDelta("id", 0, 4, (), ""),
    Finished("id", 0, ChoiceEnd(FinishReason.LENGTH), Usage(3, 7), Timings(0.1, 0.2, 0.3)),
    RequestFailed("id", ErrorInfo("engine_error", "it failed")),
    EngineStats(1, 2, 3, QueueCounts(4, 5, 6)),
    EngineHealth(EngineState.LOADING, 0.5),
    ModelInfo("guide", "abc", 2048, 4096, 300, (1,)),
    Submit(REQUEST),
    Abort("id"),
    Pause("id"),
    Resume("id"),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_messages_survive_serialization(message: object) -> None:
    encoded = msgspec.json.encode(message)
    decoded = msgspec.json.decode(encoded, type=type(message))
    assert msgspec.json.encode(decoded) == encoded
    assert type(decoded) is type(message)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_messages_are_immutable(message: object) -> None:
    field = (message.__slots__ or message._fields)[0]
    with pytest.raises(AttributeError):
        setattr(message, field, None)
