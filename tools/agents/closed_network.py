"""A network without a way out, in which every attempt to leave it is seen: a namespace of Linux.

Inside there are only the loopback and a device that leads nowhere. Names are asked of a resolver here, which knows
none and notes each; packets to other addresses arrive at the device, which notes where they were going.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Sequence
from ipaddress import ip_address
from pathlib import Path

# What is inside ends with the one who has entered it.
ENTER = ("unshare", "--user", "--map-root-user", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
DEVICE = "leaving"
_SETUP = (
    "link set lo up",
    f"address add 198.18.0.1/15 dev {DEVICE}",
    f"-6 address add fd00::1/64 dev {DEVICE} nodad",
    f"link set {DEVICE} up",
    f"route add default dev {DEVICE}",
    f"-6 route add default dev {DEVICE}",
)
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_PROTOCOLS = {6: "TCP", 17: "UDP"}  # others are the kernel's own
_NO_SUCH_NAME = b"\x81\x83"
_RESOLVER = "127.0.0.1"
_DNS_PORT = 53
_MAX_PACKET = 65_535


class NoNamespace(Exception):
    """This machine permits no namespace, or lacks what sets it up."""


def inside(command: Sequence[str]) -> list[str]:
    """Return the command that runs another one in such a network.

    Raises:
        NoNamespace: the network cannot be made.
    """
    try:
        tried = subprocess.run([*ENTER, "true"], capture_output=True, text=True)
    except FileNotFoundError:
        raise NoNamespace("The program `unshare` is missing; install util-linux.") from None
    if tried.returncode:
        raise NoNamespace(f"`{' '.join(ENTER)}` failed: {tried.stderr.strip()}.")
    return [*ENTER, *command]


class Departures:
    """Notes what is sent to other hosts from now on; only inside a namespace that `inside` has made. Any thread.

    The configuration of the resolver is written into `folder`.

    Raises:
        NoNamespace: the devices cannot be made.
    """

    def __init__(self, folder: Path) -> None:
        self._noted: list[str] = []
        self._device = os.open("/dev/net/tun", os.O_RDWR)
        fcntl.ioctl(self._device, _TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), _IFF_TUN | _IFF_NO_PI))
        for arguments in _SETUP:
            _run("ip", *arguments.split())
        (folder / "resolv.conf").write_text(f"nameserver {_RESOLVER}\n")
        _run("mount", "--bind", str(folder / "resolv.conf"), str(Path("/etc/resolv.conf").resolve()))
        self._resolver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._resolver.bind((_RESOLVER, _DNS_PORT))
        for read in (self._read_packets, self._answer_questions):
            threading.Thread(target=read, daemon=True).start()

    def take(self) -> list[str]:
        """Return what was noted since the last call, each once: names that were asked for, and addresses."""
        noted, self._noted = self._noted, []
        return list(dict.fromkeys(noted))

    def _read_packets(self) -> None:
        while packet := os.read(self._device, _MAX_PACKET):
            if (target := target_of(packet)) is not None:
                self._noted.append(target)

    def _answer_questions(self) -> None:
        while True:
            question, sender = self._resolver.recvfrom(_MAX_PACKET)
            self._noted.append(name_in(question))
            self._resolver.sendto(question[:2] + _NO_SUCH_NAME + question[4:], sender)


def target_of(packet: bytes) -> str | None:
    """Return protocol, address and port that an IP packet of TCP or UDP goes to; None for others."""
    version = packet[0] >> 4
    if version == 4:
        protocol, address, head = packet[9], packet[16:20], (packet[0] & 15) * 4
    elif version == 6:
        protocol, address, head = packet[6], packet[24:40], 40
    else:
        return None
    if protocol not in _PROTOCOLS:
        return None
    (port,) = struct.unpack_from("!H", packet, head + 2)
    return f"{_PROTOCOLS[protocol]} {ip_address(address)} port {port}"


def name_in(question: bytes) -> str:
    """Return the name that a message of DNS asks for."""
    labels, offset = [], 12
    while offset < len(question) and (length := question[offset]):
        labels.append(question[offset + 1 : offset + 1 + length].decode(errors="replace"))
        offset += 1 + length
    return f"name {'.'.join(labels)}"


def _run(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        raise NoNamespace(f"The program `{command[0]}` is missing; install iproute2 and mount.") from None
    if done.returncode:
        raise NoNamespace(f"`{' '.join(command)}` failed: {done.stderr.strip()}.")


def again(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module in this interpreter."""
    return [sys.executable, "-m", module, *arguments]
