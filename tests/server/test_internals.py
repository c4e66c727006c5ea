"""Private names of uvicorn, websockets and httptools that the server relies on.

A new version that lacks a name fails here by that name; the bounds in pyproject.toml keep it away from users, and
`make versions` tests the lowest and the newest allowed versions.
"""

import inspect
import re
from importlib.metadata import version

import httptools
import pytest
import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.server import ServerProtocol
from websockets.streams import StreamReader

from app.server.http_protocol import HttpProtocol
from app.server.lifecycle import Server
from app.server.websocket_protocol import WebSocketProtocol
from tests.house.source import ROOT
from tools.versions import PACKAGES, lower_bound, requirements

ALLOWED = requirements((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
# By class: methods that are overridden or called, and attributes that are read or set.
METHODS = {
    HttpToolsProtocol: (
        "connection_made", "connection_lost", "data_received", "on_headers_complete", "on_message_complete",
        "on_response_complete", "handle_websocket_upgrade", "_should_upgrade",
        "_unset_keepalive_if_required",
    ),
    WebSocketsSansIOProtocol: (
        "connection_made", "connection_lost", "data_received", "receive", "send", "shutdown", "keepalive_timeout",
        "handle_connect", "handle_close", "handle_ping", "handle_text", "handle_bytes", "handle_cont",
        "handle_parser_exception", "send_receive_event_to_app", "stop_keepalive",
    ),
    ServerProtocol: ("reject", "fail", "data_to_send"),
    RequestResponseCycle: ("send", "receive"),
    httptools.HttpRequestParser: (
        "feed_data", "get_method", "should_upgrade", "should_keep_alive", "set_dangerous_leniencies",
    ),
    uvicorn.Server: ("startup", "shutdown", "capture_signals", "on_tick", "serve", "run"),
}  # fmt: skip
ATTRIBUTES = {
    HttpToolsProtocol: (
        "cycle", "flow", "headers", "loop", "parser", "scope", "server_state", "transport", "url", "client",
    ),
    RequestResponseCycle: ("keep_alive", "message_event", "response_started", "response_complete"),
    WebSocketsSansIOProtocol: (
        "app", "client", "close_sent", "close_timeout", "close_timer", "conn", "curr_msg_data_type", "disconnected",
        "frames", "handshake_complete", "handshake_initiated", "initial_response", "queue", "read_paused", "response",
        "scope", "transport", "writable",
    ),
    ServerProtocol: ("reader",),
    StreamReader: ("buffer",),
}  # fmt: skip


@pytest.mark.parametrize("kind", METHODS, ids=lambda kind: kind.__name__)
def test_private_methods_exist(kind):
    assert [name for name in METHODS[kind] if not callable(getattr(kind, name, None))] == []


@pytest.mark.parametrize("kind", ATTRIBUTES, ids=lambda kind: kind.__name__)
def test_private_attributes_exist(kind):
    source = "".join(
        inspect.getsource(base) for base in kind.__mro__ if base.__module__.startswith(("uvicorn", "websockets"))
    )
    assert [name for name in ATTRIBUTES[kind] if not re.search(rf"\b{name}\b", source)] == []


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(HttpProtocol, HttpToolsProtocol), (WebSocketProtocol, WebSocketsSansIOProtocol), (Server, uvicorn.Server)],
)
def test_every_overridden_method_is_in_the_list(ours, theirs):
    overridden = {name for name, value in vars(ours).items() if inspect.isfunction(value) and hasattr(theirs, name)}
    assert overridden - {"__init__"} - set(METHODS[theirs]) == set()


def test_status_lines_exist():
    assert STATUS_LINE[429].startswith(b"HTTP/1.1 429 ") and STATUS_LINE[503].endswith(b"\r\n")


@pytest.mark.parametrize("package", PACKAGES)
def test_the_installed_version_is_allowed(package):
    digits = [int(part) for part in lower_bound(ALLOWED[package]).split(".")]
    assert [int(part) for part in version(package).split(".")] >= digits
    assert package in ("httptools", "starlette") or "<" in ALLOWED[package], "its private methods are overridden"
    assert [int(part) for part in lower_bound(ALLOWED["httptools"]).split(".")] >= [0, 6, 3], "h2c raises before it"


async def test_the_parser_survives_an_offer_of_http_2():
    """httptools 0.6.0 did not report the end of the head, and the client got an empty response."""
    parser = httptools.HttpRequestParser(object())
    parser.set_dangerous_leniencies(lenient_data_after_close=True)
    with pytest.raises(httptools.HttpParserUpgrade):
        parser.feed_data(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n")
