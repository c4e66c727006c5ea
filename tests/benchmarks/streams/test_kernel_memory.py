"""The output of `ss` is parsed; without `ss` there is no figure."""

import socket

from benchmarks.streams import kernel_memory
from benchmarks.streams.kernel_memory import queued_kib, read_queued

PRINTED = """\
0      2048   127.0.0.1:8000 127.0.0.1:5000
 skmem:(r0,rb131072,t0,tb32768,f2048,w34816,o0,bl0,d0)
0      0      127.0.0.1:8000 127.0.0.1:5001
 skmem:(r512,rb131072,t0,tb32768,f0,w0,o0,bl0,d0)
"""


def test_both_queues_of_each_socket_are_read():
    assert read_queued(PRINTED) == [34816, 512]
    assert read_queued("") == []


def test_the_fullest_sockets_are_averaged(monkeypatch):
    monkeypatch.setattr(kernel_memory, "read_queued", lambda text: [1024, 4096, 0, 2048])
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert queued_kib(listener.getsockname()[1], 2) in (3.0, None)  # None: this machine has no `ss`


def test_without_ss_there_is_no_figure(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert queued_kib(1, 1) is None
