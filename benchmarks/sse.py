"""CPU time per streamed event of three ways to answer with SSE, on a transport that costs nothing.

`python -m benchmarks sse [--repeat N]`. Ours (`app/api/wire/stream_response.py`: sessions, encoding, heartbeats,
disconnect watch), Starlette's StreamingResponse and sse-starlette's EventSourceResponse (both fed with finished
bytes). No limit: they show which one to keep.
"""

import argparse
import asyncio
import time
from collections.abc import AsyncIterator, Callable

from sse_starlette.sse import EventSourceResponse
from starlette.responses import StreamingResponse
from starlette.types import ASGIApp, Message

from app.api.body.grammar_trials import GrammarTrials
from app.api.http.context import ApiContext, StreamTimers
from app.api.wire.api_request import ApiRequest
from app.api.wire.chat_format import ChatFormat
from app.api.wire.framing import SSE
from app.api.wire.openai_wire import OpenAiWire
from app.api.wire.stream_response import make_response
from app.checkpoint.names import resolve
from app.checkpoint.text_files import FolderText
from app.commands.options import Parser
from app.config.settings import Config
from app.contract.admission import admit
from app.contract.engine_status import ModelInfo
from app.contract.events import ChoiceEnd, Finished, FinishReason, Timings, TokenDelta, Usage
from app.contract.ports import EventSink
from app.contract.requests import EngineRequest
from app.contract.sampling_params import SamplingParams
from app.loadgen.table import table
from app.observe.terminal import own_terminal
from app.text.entry.frontend import TextFrontend
from app.text.grammar.cache import GrammarCache
from benchmarks.figures import spread

NUM_EVENTS = 20_000
CARD = ModelInfo("bench", "0", 2 * NUM_EVENTS, 2 * NUM_EVENTS, 1000)
SCOPE = {
    "type": "http",
    "method": "POST",
    "path": "/",
    "headers": [],
    "extensions": {},
    "asgi": {"spec_version": "2.3"},
}


class InstantEngine:
    """An engine client that answers with NUM_EVENTS tokens, one event in each turn of the loop."""

    def submit(self, request: EngineRequest, sink: EventSink) -> None:
        self._answering = asyncio.create_task(self._answer(request, sink))

    async def _answer(self, request: EngineRequest, sink: EventSink) -> None:
        for number in range(1, NUM_EVENTS + 1):
            sink.put(TokenDelta(request.id, 0, number, (5,), " token"))
            await asyncio.sleep(0)
        sink.put(Finished(request.id, 0, ChoiceEnd(FinishReason.LENGTH), Usage(1, NUM_EVENTS), Timings(0, 0, 0)))


async def ready_bytes() -> AsyncIterator[bytes]:
    """Yield what the others are fed with: one finished event per token."""
    event = b'data: {"id":"chatcmpl-0","object":"chat.completion.chunk","created":1,"model":"bench","choices":[]}\n\n'
    for _ in range(NUM_EVENTS):
        yield event


def ours() -> ASGIApp:
    """Return our own response."""
    params = admit([1], SamplingParams(max_tokens=NUM_EVENTS), CARD)
    request = EngineRequest("chatcmpl-0", (1,), params, 0.0)
    text = TextFrontend.load(Config().model, FolderText(resolve(Config().model.model)))
    context = ApiContext(InstantEngine(), Config(), text, StreamTimers(), GrammarCache(), GrammarTrials)  # type: ignore[arg-type]
    answered = ApiRequest(request, "bench", 1, True, False, (), lambda token_id: b"")
    return make_response(context, answered, OpenAiWire(answered, ChatFormat(answered), SSE))


async def spend(make: Callable[[], ASGIApp]) -> float:
    """Return the CPU microseconds per event of one complete response."""

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Message) -> None:
        pass

    began = time.process_time()
    await make()(SCOPE, receive, send)
    return (time.process_time() - began) / NUM_EVENTS * 1e6


def add_options(parser: Parser) -> None:
    """Add how often."""
    parser.add_argument("--repeat", type=int, default=5, help="turns of each, default 5")


def run(args: argparse.Namespace) -> int:
    """Measure in turns and print the median and the spread of each."""
    kinds: dict[str, Callable[[], ASGIApp]] = {
        "ours": ours,
        "StreamingResponse": lambda: StreamingResponse(ready_bytes(), media_type="text/event-stream"),
        "EventSourceResponse": lambda: EventSourceResponse(ready_bytes(), ping=3600),
    }
    costs: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(args.repeat):
        for name, make in kinds.items():
            costs[name].append(asyncio.run(spend(make)))
    rows = [[name, spread(found)] for name, found in costs.items()]
    print("\n".join(table(own_terminal(), ["", "µs/event (min-max)"], rows)))
    return 0
