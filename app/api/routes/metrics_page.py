"""`/metrics`: the route for monitors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response

from app.runtime.clock import Clock, monotonic

# Of the loop's time: clients that request `/metrics` all the time do not delay others.
METRICS_SHARE = 0.1


class MetricsPage:
    """`/metrics` in Prometheus' text format; rendering takes at most `METRICS_SHARE` of the loop's time.

    Requests of about the same time get the same page, which was rendered after they were received. Loop only.
    """

    def __init__(self, render: Callable[[], bytes], *, clock: Clock = monotonic) -> None:
        self._render = render
        self._clock = clock
        self._next: asyncio.Future[bytes] | None = None
        self._earliest = 0.0

    async def show(self, request: Request) -> Response:
        """Answer with the page that is rendered next. Cancel-safe. Raises what `render` raises."""
        if self._next is None:
            loop = asyncio.get_running_loop()
            self._next = loop.create_future()
            loop.call_later(max(0.0, self._earliest - self._clock()), self._render_next)
        return Response(await asyncio.shield(self._next), media_type=CONTENT_TYPE_LATEST)

    def _render_next(self) -> None:
        page, self._next = self._next, None
        assert page is not None
        began = self._clock()
        try:
            page.set_result(self._render())
        except Exception as error:
            page.set_exception(error)
        now = self._clock()
        self._earliest = now + (now - began) * (1 / METRICS_SHARE - 1)
