"""The listening socket: its options, and what is said when it cannot listen."""

import socket

import pytest

from app.errors import CannotStart, ConfigurationError
from app.server.sockets import DEAD_PEER_S, listen, url_of


def test_port_0_picks_a_free_port_that_accepts():
    with listen("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()[:2], timeout=5):
        accepted, _ = listener.accept()
        accepted.close()


def test_accepted_connections_notice_dead_peers():
    with listen("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()[:2], timeout=5):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == DEAD_PEER_S * 1000


def test_a_port_in_use_cannot_be_listened_on():
    with listen("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(CannotStart, match=f"port {port}"):
            listen("127.0.0.1", port)


def test_a_port_can_be_used_again_at_once():
    with listen("127.0.0.1", 0) as first, socket.create_connection(first.getsockname()[:2], timeout=5):
        port = first.getsockname()[1]
        accepted, _ = first.accept()
        accepted.close()  # leaves the connection in TIME_WAIT on our side
    listen("127.0.0.1", port).close()


def test_an_address_of_another_machine_cannot_be_listened_on():
    with pytest.raises(CannotStart, match=r"192\.0\.2\.1"):
        listen("192.0.2.1", 0)


def test_a_host_that_is_none_is_a_mistake():
    with pytest.raises(ConfigurationError, match="not a host"):
        listen("not a host", 0)


@pytest.mark.parametrize(("host", "url"), [("127.0.0.1", "http://127.0.0.1:"), ("0.0.0.0", "http://127.0.0.1:")])
def test_the_url_can_be_typed_into_a_browser(host, url):
    with listen(host, 0) as listener:
        assert url_of(listener) == f"{url}{listener.getsockname()[1]}"


@pytest.mark.parametrize("host", ["::1", "[::1]"])
def test_ipv6_urls_have_brackets(host):
    try:
        listener = listen(host, 0)
    except CannotStart:
        pytest.skip("this machine has no IPv6")
    with listener:
        assert url_of(listener) == f"http://[::1]:{listener.getsockname()[1]}"
