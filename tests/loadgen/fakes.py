"""A scripted HTTP server, and answers, runs and figures with given times."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from app.loadgen.answer import Answer
from app.loadgen.figures import Figures, figures_of
from app.loadgen.load_run import Run

HANG_S = 60.0
DONE = b"data: [DONE]\n\n"


def event(choices: Sequence[dict[str, Any]] = (), **fields: Any) -> bytes:
    """One event of a stream."""
    return b"data: " + json.dumps({"choices": list(choices), **fields}, ensure_ascii=False).encode() + b"\n\n"


def text(piece: str = "a") -> bytes:
    """A chunk of a completion."""
    return event([{"index": 0, "text": piece, "finish_reason": None}])


def content(piece: str = "a", **delta: Any) -> bytes:
    """A chunk of a chat."""
    return event([{"index": 0, "delta": {"content": piece, **delta}, "finish_reason": None}])


FINISH = event([{"index": 0, "text": "", "finish_reason": "length"}])


def usage(prompt: int, output: int) -> bytes:
    """The last chunk of a server that counts tokens."""
    return event(usage={"prompt_tokens": prompt, "completion_tokens": output})


def http(body: bytes, status: str = "200 OK") -> bytes:
    """A response with a content length."""
    return f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


def chunked(*pieces: bytes, is_complete: bool = True) -> bytes:
    """A stream in HTTP chunks, with or without its end."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n" * is_complete


def stream(num_tokens: int = 3, prompt: int = 5) -> bytes:
    """A complete stream with its token counts."""
    return chunked(*[text()] * num_tokens, FINISH, usage(prompt, num_tokens), DONE)


def rejection(status: str = "503 Service Unavailable", code: str = "overloaded") -> bytes:
    """An error response."""
    return http(json.dumps({"error": {"message": "Too many requests.", "code": code}}).encode(), status)


MODELS = http(b'{"data": [{"id": "fake"}, {"id": "other"}]}')


class FakeServer:
    """Sends the bytes `answers(n)` to the n-th POST once `together` were open at a time, and closes the connection.

    Attributes:
        url: where it listens.
        heads, bodies: of the requests, in order; a GET gets `models` and has no body here.
        num_open, most_open: the number of open POSTs, now and at most.
        lost: numbers of the POSTs whose client closed the connection while it was held.
    """

    def __init__(self, answers: Callable[[int], bytes], models: bytes = MODELS, together: int = 1) -> None:
        self.url = ""
        self.heads: list[str] = []
        self.bodies: list[dict[str, Any]] = []
        self.num_open = self.most_open = 0
        self.lost: list[int] = []
        self.holds = False
        self.tasks: set[asyncio.Task[None]] = set()
        self._answers = answers
        self._models = models
        self._together = together
        self._are_together = asyncio.Event()
        self._released = asyncio.Event()

    def hold(self) -> None:
        """Keep connections open after the bytes of the answer, until the client closes them or `release`."""
        self.holds = True

    def release(self) -> None:
        """Close all connections, and later ones at once."""
        self._released.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.heads.append(head)
        if head.startswith("GET"):
            writer.write(self._models)
        else:
            await self._post(head, reader, writer)
        writer.close()

    async def _post(self, head: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        length = next(int(line.split(":")[1]) for line in head.splitlines() if line.startswith("content-length"))
        number = len(self.bodies)
        self.bodies.append(json.loads(await reader.readexactly(length)))
        self.num_open += 1
        self.most_open = max(self.most_open, self.num_open)
        if self.most_open >= self._together:
            self._are_together.set()
        if self.holds:
            writer.write(self._answers(number))
            waits = [asyncio.create_task(each) for each in (reader.read(), self._released.wait())]
            done, _ = await asyncio.wait(waits, timeout=HANG_S, return_when=asyncio.FIRST_COMPLETED)
            if waits[0] in done:
                self.lost.append(number)
            for wait in waits:
                wait.cancel()
            self.num_open -= 1
        else:
            await asyncio.wait_for(self._are_together.wait(), HANG_S)
            self.num_open -= 1
            writer.write(self._answers(number))


@asynccontextmanager
async def serving(
    answers: Callable[[int], bytes] | bytes, models: bytes = MODELS, together: int = 1
) -> AsyncIterator[FakeServer]:
    """A fake server for the time of the block; `answers` may be the bytes of every answer."""
    fake = FakeServer((lambda number: answers) if isinstance(answers, bytes) else answers, models, together)
    server = await asyncio.start_server(fake._serve, "127.0.0.1", 0)
    fake.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield fake
    finally:
        fake.release()
        await asyncio.wait_for(asyncio.gather(*fake.tasks), HANG_S)
        server.close()
        await server.wait_closed()


def make_answer(sent: float = 0.0, times: Sequence[float] = (0.1, 0.2, 0.4), **fields: Any) -> Answer:
    """An answer that completed with its last chunk."""
    known: dict[str, Any] = {
        "connected": sent,
        "times": [sent + time for time in times],
        "ended": sent + times[-1] if times else sent,
        "prompt_tokens": 10,
        "output_tokens": len(times),
        "status": "completed",
    }
    return Answer(sent, sent, sent, **(known | fields))


def make_run(*answers: Answer, ended: float | None = None, **fields: Any) -> Run:
    """A run that began at 0, with these answers."""
    run = Run(None)  # type: ignore[arg-type]
    run.answers += answers
    run.ended = max((answer.ended for answer in answers), default=0.0) if ended is None else ended
    for name, value in fields.items():
        setattr(run, name, value)
    return run


def make_figures(rate: float = 2.0, *answers: Answer, **fields: Any) -> Figures:
    """The figures of such a run; by default it has three answers."""
    return figures_of(make_run(*(answers or map(make_answer, (0.0, 0.5, 1.0))), **fields), rate)


@contextmanager
def free_port() -> Iterator[int]:
    """A port of the loopback without a listener; no other process gets it in the time of the block."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # for the server that a test starts there
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]
