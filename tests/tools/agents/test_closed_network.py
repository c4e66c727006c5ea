"""What leaves is seen: packets, names, and in a namespace the connections of a program."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.source import ROOT
from tools.agents.closed_network import NoNamespace, inside, name_in, target_of

PROGRAM = """
import socket, sys
from pathlib import Path
sys.path.insert(0, {root!r})
from tools.agents.closed_network import Departures
departures = Departures(Path({folder!r}))
assert departures.take() == []
server = socket.create_server(("127.0.0.1", 0))
socket.create_connection(server.getsockname()).close()
assert departures.take() == []
try:
    socket.getaddrinfo("quire.example", 443)
    raise SystemExit("a name was found")
except socket.gaierror:
    pass
for family, address in ((socket.AF_INET, "203.0.113.7"), (socket.AF_INET6, "2001:db8::7")):
    with socket.socket(family, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"x", (address, 4433))
with socket.socket() as sender:
    sender.setblocking(False)
    sender.connect_ex(("203.0.113.8", 443))
    seen = []
    while not any("203.0.113.8" in each for each in seen):
        seen += departures.take()
print(sorted(set(seen)))
"""
IPV4 = bytes([0x46, *[0] * 8, 6, 0, 0, 10, 0, 0, 1, 203, 0, 113, 7, *[0] * 4])  # with options, from 10.0.0.1
IPV6 = bytes([0x60, *[0] * 5, 17, 64, *[0] * 16, 0x20, 1, 0x0D, 0xB8, *[0] * 11, 7])
PORTS = struct.pack("!HH", 5555, 443)


def test_a_packet_tells_where_it_goes():
    assert target_of(IPV4 + PORTS) == "TCP 203.0.113.7 port 443"
    assert target_of(IPV6 + PORTS) == "UDP 2001:db8::7 port 443"


def test_packets_of_the_kernel_itself_are_no_connections():
    router_solicitation = bytes([0x60, *[0] * 5, 58]) + IPV6[7:]
    assert target_of(router_solicitation + PORTS) is None
    assert target_of(b"\x00" * 60) is None


def test_a_question_tells_its_name():
    assert name_in(b"\x12\x34" + b"\0" * 10 + b"\x03api\x07example\x03com\0\0\x01\0\x01") == "name api.example.com"
    assert name_in(b"\x12\x34") == "name "


def test_what_a_program_asks_of_other_hosts_is_seen_and_the_loopback_is_not(tmp_path: Path):
    program = PROGRAM.format(root=str(ROOT), folder=str(tmp_path))
    try:
        command = inside([sys.executable, "-c", program])
    except NoNamespace as error:
        pytest.skip(str(error))
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(
        ["TCP 203.0.113.8 port 443", "UDP 2001:db8::7 port 4433", "UDP 203.0.113.7 port 4433", "name quire.example"]
    )


def test_a_machine_without_namespaces_is_told(monkeypatch):
    monkeypatch.setattr("tools.agents.closed_network.ENTER", ("false",))
    with pytest.raises(NoNamespace, match="`false` failed"):
        inside(["true"])
    monkeypatch.setattr("tools.agents.closed_network.ENTER", ("quire-has-no-such-program",))
    with pytest.raises(NoNamespace, match="unshare"):
        inside(["true"])
