"""How the server of a row is started, and as whom its two clients come: by address, by key, over IPv6."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_network
from typing import NamedTuple

KV_CACHE_BYTES = 1 << 30
"""Fixed, so that its pages can be told from other memory: they are taken when they are first used, and kept."""
PREFIX = "2001:db8:51:5e::/64"  # reserved for documentation (RFC 3849): nobody has it
GOOD_KEY, ATTACKER_KEY = "good-client", "attacker"


class Setup(NamedTuple):
    """The options of a row's server, and the keys and addresses of its clients.

    Attributes:
        source: the attacker's address, or the network of its addresses; each connection has another one.
        is_log_read: False if the server's stderr is a pipe that nobody reads.
        has_stream: False if the good client has nothing but its new requests, so that each must get a seat first.
        program: the module that is run as `quire`.
        checkpoint: the one that it serves; "" for that of the round.
    """

    options: tuple[str, ...] = ()
    good_key: str | None = None
    attacker_key: str | None = None
    source: str = "127.0.0.2"
    is_log_read: bool = True
    has_stream: bool = True
    program: str = "app"
    checkpoint: str = ""

    @property
    def server(self) -> tuple[tuple[str, ...], bool, str, str]:
        """The options of the server, whether its log is read, its program and model, equal where it is shared."""
        return self.options, self.is_log_read, self.program, self.checkpoint


PLAIN = Setup()
NO_STREAM = Setup(has_stream=False)
KEYS = Setup(("--api-key", GOOD_KEY, "--api-key", ATTACKER_KEY), GOOD_KEY, ATTACKER_KEY, "127.0.0.1")
# Less than what an answer may hold, so that what is kept must go again within the row.
KEPT = Setup(("--resume-memory", "4MiB"))
NO_KEY = KEYS._replace(attacker_key=None)
ADDRESSES = Setup(source="127.0.9.0/24")
IPV6 = Setup(("--host", "::1"), source=PREFIX)
UNREAD_LOG = Setup(is_log_read=False)
SLOW_DISK = Setup(program="benchmarks.isolation.slow_disk")
EXPERTS = Setup(checkpoint="experts")
SMALL_STORE = Setup(program="benchmarks.isolation.small_store")


@contextmanager
def loopback_network(network: str = PREFIX) -> Iterator[str]:
    """Make all addresses of a network this machine's own, until the block ends; yield why that fails, or "".

    Linux only, and it needs the right to change routes.
    """
    command = ["ip", f"-{ip_network(network).version}", "route"]
    route = ["local", network, "dev", "lo"]
    try:
        added = subprocess.run([*command, "add", *route], capture_output=True, text=True)
        why = added.stderr.strip() or "it failed" if added.returncode else ""
    except OSError as error:
        why = f"ip: {error.strerror}"
    try:
        yield why
    finally:
        if not why:
            subprocess.run([*command, "del", *route], capture_output=True)
