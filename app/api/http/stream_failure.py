"""The failure of one stream of a WebSocket, as its client is told; the connection and its other streams go on."""

from __future__ import annotations

import logging

from app.contract.errors import EngineFailed, ErrorInfo, QuireError


def failure_of(error: BaseException) -> ErrorInfo:
    """Return the failure that ends a stream with `error`; one that is not meant for users is logged instead."""
    if not isinstance(error, QuireError):
        logging.getLogger(__name__).error("internal error on a stream", exc_info=error)
        error = EngineFailed("Internal error on this stream; see the server log.")
    return error.info()
