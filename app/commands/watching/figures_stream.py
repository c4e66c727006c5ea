"""The figures that a server sends (`GET /v1/engine/events`), one object after the other."""

from __future__ import annotations

import contextlib
import http.client
import socket

import msgspec

from app.commands.answers.server_connection import (
    NO_KEY,
    NO_ROUTE,
    authorization,
    connection_to,
    key_refused,
    unreachable,
)
from app.commands.answers.server_errors import refusal
from app.config.base_url import BaseUrl
from app.contract.engine_figures import EngineFigures
from app.contract.errors import CannotStart, ConfigurationError

_DATA = b"data: "
_MAX_LINE = 64 * 2**10
_MAX_SILENCE_S = 30.0  # the server sends a comment every 15 s


class FiguresStream:
    """Reads the figures of one server; `read` blocks, on any one thread."""

    def __init__(self, url: BaseUrl, key: str | None, interval_s: float) -> None:
        self._url = url
        self._key = key
        self._interval_s = interval_s
        self._connection = connection_to(url, _MAX_SILENCE_S)
        self._response: http.client.HTTPResponse | None = None

    def read(self) -> EngineFigures:
        """Return the next figures; the first call connects.

        Raises:
            CannotStart: the server cannot be reached, or it has stopped.
            ConfigurationError: it does not accept the API key.
            ServerRefused: it has no such route, or refuses the request.
        """
        try:
            if self._response is None:
                self._response = self._open()
            while line := self._response.readline(_MAX_LINE):
                if line.startswith(_DATA):
                    return msgspec.json.decode(line[len(_DATA) :], type=EngineFigures)
        except msgspec.DecodeError as error:
            raise CannotStart(f"{self._url} sends other figures than this version of Quire reads ({error})") from None
        except (OSError, http.client.HTTPException, ValueError) as error:  # ValueError: `close` came between
            raise unreachable(self._url, error) from None
        raise CannotStart(f"{self._url} has ended its stream of figures: the server has stopped, or is about to")

    def close(self) -> None:
        """End the connection; a `read` on another thread returns soon. Any thread. Idempotent."""
        if self._connection.sock is not None:
            with contextlib.suppress(OSError):  # it has ended already
                self._connection.sock.shutdown(socket.SHUT_RDWR)

    def _open(self) -> http.client.HTTPResponse:
        path = f"{self._url.path}/v1/engine/events?interval={self._interval_s:g}"
        self._connection.request("GET", path, headers={"accept": "text/event-stream", **authorization(self._key)})
        response = self._connection.getresponse()
        if response.status == NO_KEY:
            raise key_refused(self._url, self._key)
        if response.status in NO_ROUTE:
            raise ConfigurationError(f"{self._url} is no Quire server: it has no /v1/engine/events", param="url")
        if response.status != 200:
            raise refusal(response.status, response.read(), response.getheader("location"))
        return response
