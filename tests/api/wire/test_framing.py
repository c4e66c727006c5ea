"""Server-sent events and lines of JSON, as a client asks for them."""

import pytest
from starlette.datastructures import Headers

from app.api.wire.framing import NDJSON, SSE, choose_framing


def test_sse_is_one_event_per_payload():
    payload = '{"text":"über"}'.encode()
    assert SSE.wrap(payload) == b"data: " + payload + b"\n\n"


def test_ndjson_is_one_line_per_payload_without_an_end_marker():
    assert NDJSON.wrap(b"{}") == b"{}\n"
    assert (NDJSON.heartbeat, NDJSON.end) == (b"\n", b"")


@pytest.mark.parametrize(
    ("accept", "framing"),
    [
        (None, SSE),
        ("*/*", SSE),
        ("text/event-stream", SSE),
        ("application/json", SSE),
        ("application/x-ndjson", NDJSON),
        ("text/html, Application/X-NDJSON; q=0.9", NDJSON),
    ],
)
def test_the_accept_header_chooses_the_framing(accept, framing):
    assert choose_framing(Headers({} if accept is None else {"accept": accept})) is framing
