"""The line of each request in the access log, and the counts of its status and of what refused it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from app.contract.counts import Counts, counter
from app.contract.errors import client_codes
from app.observe.log import log_request

OTHER = "other"
NO_CODE = "none"
"""The code of requests whose client left before their response began."""


@dataclass(slots=True)
class RequestCounts(Counts):
    """Requests over HTTP, and streams on WebSockets, that have ended."""

    answers: dict[tuple[str, str], float] = counter(
        "quire_http_requests",
        "Requests that have ended, and streams on `/ws`, by route and HTTP status; none: the client left before a "
        "response.",
        by=("route", "code"),
        start={},
    )
    refusals: dict[str, float] = counter(
        "quire_refusals",
        "Requests that were refused or failed, by error code; also those that failed after their response had begun.",
        by=("reason",),
        start=dict.fromkeys(client_codes(), 0),
    )


class RequestLog:
    """Logs and counts the requests of one server, whose `routes` are paths, some with parameters. Loop only.

    Attributes:
        counts: the requests so far. Their labels are routes and error codes of this server, whatever clients send.
    """

    def __init__(self, routes: Iterable[str] = ()) -> None:
        self.counts = RequestCounts()
        self._paths: dict[str, str] = {}
        self._beginnings: dict[str, str] = {}  # of paths with a parameter
        for route in routes:
            beginning, brace, parameter = route.partition("{")
            if brace:
                self._beginnings[beginning] = f"{beginning}{{{parameter.partition(':')[0].rstrip('}')}}}"
            else:
                self._paths[route] = route

    def write(self, *, is_routine: bool = False, **fields: Any) -> None:
        """Log a request when it ends (see `log_request`), and count it; refusals of routine requests do not count."""
        log_request(is_routine=is_routine, **fields)
        key = (self._route_of(fields.get("path") or ""), str(fields["status"] or NO_CODE))
        self.counts.answers[key] = self.counts.answers.get(key, 0) + 1
        # The state of a server that drains is spelled as the error: a probe that is told so was not refused.
        if not is_routine and (reason := fields["reason"]) in self.counts.refusals:
            self.counts.refusals[reason] += 1

    def _route_of(self, path: str) -> str:
        if path in self._paths:
            return path
        return next((route for begin, route in self._beginnings.items() if path.startswith(begin)), OTHER)
