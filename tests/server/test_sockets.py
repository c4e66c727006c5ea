"""The listening socket: its options, and the errors if it cannot listen."""

import errno
import socket
import time

import pytest

from app.config.checks import is_loopback
from app.config.settings import ServerConfig
from app.contract.errors import CannotStart, ConfigurationError
from app.server import sockets
from app.server.sockets import UNSENT_BYTES, listen, own_addresses, unacknowledged_timeout_s, urls_of

HANG_S = 60.0


def test_port_0_picks_a_free_port_that_accepts():
    with listen("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()[:2], timeout=5):
        accepted, _ = listener.accept()
        accepted.close()


def test_accepted_connections_have_keep_alive_and_a_user_timeout():
    with listen("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()[:2], timeout=5):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            timeout_ms = round(unacknowledged_timeout_s(ServerConfig().stall_timeout) * 1000)
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == timeout_ms


def test_accepted_connections_have_small_send_buffers():
    server = ServerConfig(send_buffer=8192)
    with listen("127.0.0.1", 0, server) as listener, socket.create_connection(listener.getsockname()[:2], timeout=5):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 2 * 8192  # the kernel doubles the value
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT) == UNSENT_BYTES


@pytest.mark.parametrize(("stall_timeout_s", "timeout_s"), [(0, 0), (1, 30), (30, 40), (600, 610)])
def test_the_kernels_timeout_is_longer_than_the_stall_timeout(stall_timeout_s, timeout_s):
    assert unacknowledged_timeout_s(stall_timeout_s) == timeout_s


@pytest.mark.parametrize(("timeout_s", "is_reset"), [(0.3, True), (0, False)])
def test_the_kernel_resets_a_connection_whose_window_stays_closed(monkeypatch, timeout_s, is_reset):
    """The reason for `unacknowledged_timeout_s`: this client's kernel answers every probe, but is reset."""
    monkeypatch.setattr(sockets, "unacknowledged_timeout_s", lambda stall_timeout_s: timeout_s)
    with listen("127.0.0.1", 0) as listener, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(listener.getsockname()[:2])
        listener.setblocking(True)
        accepted, _ = listener.accept()
        with accepted:
            accepted.setblocking(False)
            with pytest.raises(BlockingIOError):
                while True:
                    accepted.send(bytes(4096))
            end = time.monotonic() + (HANG_S if is_reset else 1)
            while not (error := accepted.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)) and time.monotonic() < end:
                time.sleep(0.02)
            assert error == (errno.ETIMEDOUT if is_reset else 0)


def test_a_port_in_use_cannot_start():
    with listen("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(CannotStart, match=f"port {port}"):
            listen("127.0.0.1", port)


def test_a_port_in_time_wait_can_be_reused_at_once():
    with listen("127.0.0.1", 0) as first, socket.create_connection(first.getsockname()[:2], timeout=5):
        port = first.getsockname()[1]
        accepted, _ = first.accept()
        accepted.close()  # leaves the connection in TIME_WAIT on our side
    listen("127.0.0.1", port).close()


def test_a_foreign_address_cannot_start():
    with pytest.raises(CannotStart, match=r"192\.0\.2\.1"):
        listen("192.0.2.1", 0)


def test_an_invalid_host_is_a_configuration_error():
    with pytest.raises(ConfigurationError, match="not a host"):
        listen("not a host", 0)


def test_the_url_of_the_loopback_is_the_only_one():
    with listen("127.0.0.1", 0) as listener:
        assert urls_of(listener) == [f"http://127.0.0.1:{listener.getsockname()[1]}"]


def test_any_address_has_the_url_of_the_loopback_and_those_for_other_machines(monkeypatch):
    own = {socket.AF_INET: ["10.1.2.3"], socket.AF_INET6: ["fd00::7"]}
    monkeypatch.setattr("app.server.sockets.own_addresses", own.get)
    with listen("0.0.0.0", 0) as listener:
        port = listener.getsockname()[1]
        assert urls_of(listener) == [f"http://127.0.0.1:{port}", f"http://10.1.2.3:{port}"]


@pytest.mark.parametrize(
    ("is_only_ipv6", "hosts"), [(0, ["127.0.0.1", "10.1.2.3", "[fd00::7]"]), (1, ["[::1]", "[fd00::7]"])]
)
def test_any_ipv6_address_has_the_urls_that_reach_it(is_only_ipv6, hosts, monkeypatch):
    own = {socket.AF_INET: ["10.1.2.3"], socket.AF_INET6: ["fd00::7"]}
    monkeypatch.setattr("app.server.sockets.own_addresses", own.get)
    try:
        listener = socket.socket(socket.AF_INET6)
    except OSError:
        pytest.skip("this machine has no IPv6")
    with listener:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, is_only_ipv6)
        listener.bind(("::", 0))
        port = listener.getsockname()[1]
        assert urls_of(listener) == [f"http://{host}:{port}" for host in hosts]


def test_own_addresses_are_found_without_a_packet_and_never_the_loopback():
    assert not any(is_loopback(each) for family in (socket.AF_INET, socket.AF_INET6) for each in own_addresses(family))


def test_a_machine_without_a_network_has_no_own_address(monkeypatch):
    def connect(self, address):
        raise OSError(101, "Network is unreachable")

    monkeypatch.setattr("app.server.sockets.socket.socket", type("Probe", (socket.socket,), {"connect": connect}))
    assert own_addresses(socket.AF_INET) == []


@pytest.mark.parametrize("host", ["::1", "[::1]"])
def test_ipv6_urls_have_brackets(host):
    try:
        listener = listen(host, 0)
    except CannotStart:
        pytest.skip("this machine has no IPv6")
    with listener:
        assert urls_of(listener) == [f"http://[::1]:{listener.getsockname()[1]}"]
