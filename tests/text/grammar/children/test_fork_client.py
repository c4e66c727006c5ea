"""The process that forks is started when it is needed, again when it has ended, and ended with all it has forked."""

from __future__ import annotations

import errno
import os
import signal
import socket
import threading

import pytest

from app.contract.errors import CannotStart, UnsupportedParameter
from app.text.grammar.children import fork_client
from app.text.grammar.children.fork_client import ForkClient
from app.text.grammar.children.shortage import Shortage
from app.text.grammar.children.trial import Verdict, encode_grammar
from app.text.tokens.tokenizer import Tokenizer
from tests.text import toys
from tests.text.grammar.children.trials import ENDLESS, PLENTY, SCHEMA, forked_by, forking, has_ended, tried, wait_for
from tests.text.grammar.processes import many_descriptors, no_descriptors, num_descriptors


def test_nothing_runs_before_the_start():
    with forking(is_started=False) as client:
        assert client.pid is None
        with pytest.raises(CannotStart, match="does not run"):
            client.fork()


def test_a_second_start_changes_nothing():
    with forking() as client:
        pid = client.pid
        client.start()
        assert pid is not None and client.pid == pid


def test_a_process_that_was_killed_is_started_again():
    with forking() as client:
        pid = client.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: has_ended(pid))
        with pytest.raises(CannotStart):
            client.fork()
        client.start()
        assert client.pid not in (None, pid) and tried(client, SCHEMA)[0] == Verdict()


def test_trials_of_a_server_with_more_than_a_thousand_clients():
    with many_descriptors(), forking() as client:
        assert tried(client, SCHEMA)[0] == Verdict() == tried(client, SCHEMA, is_short=True)[0]


def test_without_free_descriptors_there_is_a_shortage_and_afterwards_none():
    with forking() as client, forking(is_started=False) as other:
        before = num_descriptors()
        with no_descriptors():
            for order in (client.fork, client.fork_short, lambda: client.fork_masks(0), other.start):
                with pytest.raises(Shortage, match="Too many open files"):
                    order()
        assert num_descriptors() == before
        other.start()
        assert tried(client, SCHEMA)[0] == Verdict() == tried(other, SCHEMA)[0]


SHORT_OF = [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN]


@pytest.mark.parametrize("number", SHORT_OF, ids=errno.errorcode.get)
@pytest.mark.parametrize("call", ["socketpair", "send_fds"])
def test_a_call_of_the_system_that_lacks_something_is_a_shortage(
    call: str, number: int, monkeypatch: pytest.MonkeyPatch
):
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    with forking() as client:
        before = num_descriptors()
        monkeypatch.setattr(socket, call, fail)
        with pytest.raises(Shortage) as caught:
            client.fork()
        monkeypatch.undo()
        assert caught.value.http_status == 503 and caught.value.retry_after_s == 1
        assert caught.value.reason == os.strerror(number) and num_descriptors() == before


@pytest.mark.parametrize("number", SHORT_OF, ids=errno.errorcode.get)
def test_a_process_that_the_system_lacks_something_for_is_a_shortage(number: int, monkeypatch: pytest.MonkeyPatch):
    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    with forking(is_started=False) as client:
        before = num_descriptors()
        monkeypatch.setattr(fork_client.subprocess, "Popen", fail)
        with pytest.raises(Shortage):
            client.start()
        assert client.pid is None and num_descriptors() == before


def test_close_ends_the_process_and_what_it_has_forked():
    with forking(PLENTY) as client, client.fork() as connection:
        connection.sendall(encode_grammar(ENDLESS))
        wait_for(lambda: forked_by(client))
        pids = [client.pid or 0, *forked_by(client)]
        client.close()
        client.close()
        assert len(pids) == 2 and client.pid is None
        wait_for(lambda: all(map(has_ended, pids)))
        with pytest.raises(CannotStart, match="shutting down"):
            client.start()


def test_the_process_has_a_group_of_its_own_in_the_servers_session():
    """The group ends as one, and Ctrl-C does not reach it; among sessions the system may divide the cores."""
    with forking() as client:
        assert client.pid is not None
        assert os.getpgid(client.pid) == client.pid and os.getsid(client.pid) == os.getsid(0)


def test_close_ends_a_start(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fork_client, "_CHILD", "import sys; sys.stdin.close(); import signal; signal.pause()")
    caught: list[Exception] = []

    def start() -> None:
        try:
            client.start()
        except CannotStart as error:
            caught.append(error)

    with forking(is_started=False) as client:
        thread = threading.Thread(target=start)
        thread.start()
        wait_for(lambda: client.pid)
        pid = client.pid or 0
        client.close()
        thread.join()
        assert has_ended(pid) and client.pid is None and len(caught) == 1


def test_a_process_that_never_becomes_ready_is_ended(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fork_client, "_CHILD", "import signal; signal.pause()")
    monkeypatch.setattr(fork_client, "START_S", 0.1)
    with forking(is_started=False) as client:
        with pytest.raises(CannotStart, match="at its start"):
            client.start()
        assert client.pid is None


def test_a_process_that_cannot_be_started_says_so(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fork_client.sys, "executable", "/nonexistent")
    with forking(is_started=False) as client, pytest.raises(CannotStart, match="cannot be started: No such file"):
        client.start()


def test_a_tokenizer_that_the_library_cannot_read_is_unsupported():
    text, _ = toys.toy("byte_level")
    client = ForkClient(text, text.vocab_size, (text.vocab_size + 7,))
    with pytest.raises(UnsupportedParameter, match="for this model's tokenizer: EOS token ID"):
        client.start()
    assert client.pid is None


def test_files_of_the_working_folder_are_not_imported(tmp_path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "msgspec.py").write_text("raise SystemExit('not this one')")
    monkeypatch.chdir(tmp_path)
    with forking() as client:
        assert tried(client, SCHEMA)[0] == Verdict()


def test_names_that_are_no_unicode_reach_the_process():
    text, backend = toys.toy("byte_level")
    client = ForkClient(Tokenizer(backend, {"eos_token": "</s>", "pad_token": "\ud800"}), text.vocab_size, (1,))
    try:
        client.start()
        assert tried(client, SCHEMA)[0] == Verdict()
    finally:
        client.close()
