"""The process that forks has one thread and the model's vocabulary; its trials end at their limits."""

from __future__ import annotations

import gc
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from app.contract.grammar import Grammar, GrammarKind
from app.text.entry.frontend import placeholder_tokenizer
from app.text.grammar.children import fork_client
from app.text.grammar.children.fork_server import greeting
from app.text.grammar.children.mask_memory import NOTES_BYTES, SIGNAL, MaskMemory, new_memory_file
from app.text.grammar.children.trial import GrammarLimits, Verdict, encode_grammar
from app.text.grammar.compile import compile_grammar
from app.text.grammar.grammar_sources import lark
from app.text.grammar.vocabulary import GrammarVocabulary
from app.text.tokens.gguf import gguf_tokenizer
from app.text.tokens.tokenizer import Tokenizer
from tests.text import gguf_toys, toys
from tests.text.grammar.children.trials import (
    ENDLESS,
    HANG_S,
    LARGE,
    NO_FORK,
    PLENTY,
    SCHEMA,
    forked_by,
    forking,
    has_ended,
    num_threads,
    received,
    tried,
    wait_for,
)


def test_the_process_has_one_thread_and_no_torch():
    with forking() as client:
        assert num_threads(client.pid) == 1
        for grammar in (SCHEMA, lark('root ::= "a"'), Grammar(GrammarKind.REGEX, "(?=a)")):
            tried(client, grammar)
        assert num_threads(client.pid) == 1
        maps = Path(f"/proc/{client.pid}/maps").read_text()
        assert "llguidance" in maps and "torch" not in maps


def test_trials_answer_as_they_would_in_the_server():
    with forking() as client:
        verdict, ended = tried(client, SCHEMA)
        assert verdict == Verdict() and ended.status == 0 and ended.cpu_s > 0 and ended.limit is None
        rejected, ended = tried(client, Grammar(GrammarKind.REGEX, "(?=a)"))
        assert rejected is not None and "ook-around" in (rejected.rejection or "") and ended.status == 0
        converted, _ = tried(client, lark('root ::= "a"'))
        assert converted is not None and converted.lark is not None


@pytest.mark.parametrize(
    ("grammar", "limits", "words"),
    [
        (ENDLESS, GrammarLimits(cpu_s=0.1, wall_s=600), "more than 0.1 s of processor time"),
        (LARGE, GrammarLimits(cpu_s=600, memory_bytes=16 * 2**20, wall_s=600), "more than 16 MiB of memory"),
        (ENDLESS, GrammarLimits(cpu_s=600, wall_s=0.1), "within 0.1 s"),
    ],
    ids=["time", "memory", "clock"],
)
def test_a_limit_ends_a_trial(grammar: Grammar, limits: GrammarLimits, words: str):
    with forking(limits) as client:
        verdict, ended = tried(client, grammar)
        assert verdict is None and words in (ended.limit or "")
        wait_for(lambda: not forked_by(client))


def test_a_short_trial_says_nothing_about_a_grammar_that_takes_longer():
    """Where a whole one may take no longer it is one."""
    for cpu_s, limit in ((600.0, None), (0.1, "It takes more than 0.1 s of processor time to compile.")):
        with forking(GrammarLimits(cpu_s=cpu_s, wall_s=600)) as client:
            verdict, ended = tried(client, ENDLESS, is_short=True)
            assert verdict is None and ended.limit == limit and ended.needs_longer == (limit is None)
            verdict, ended = tried(client, SCHEMA, is_short=True)
            assert verdict == Verdict() and not ended.needs_longer


def test_a_short_trial_has_the_other_limits():
    with forking(GrammarLimits(cpu_s=600, wall_s=0.1, short_s=60)) as client:
        _, ended = tried(client, ENDLESS, is_short=True)
        assert "within 0.1 s" in (ended.limit or "") and not ended.needs_longer


def test_a_trial_that_somebody_else_has_ended_has_no_verdict_and_no_limit():
    with forking(PLENTY) as client, client.fork() as connection:
        connection.sendall(encode_grammar(ENDLESS))
        wait_for(lambda: forked_by(client))
        os.kill(forked_by(client)[0], signal.SIGKILL)
        verdict, ended = received(connection)
        assert verdict is None and ended.status == -signal.SIGKILL and ended.limit is None


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGPROF, None])
def test_the_signal_that_ends_the_process_of_masks_is_noted_before_its_socket_ends(end: signal.Signals | None):
    """Although other processes began while it ran, and run on; nothing of it is left."""
    descriptor = new_memory_file(NOTES_BYTES)
    memory = MaskMemory(descriptor, 0, 0)
    with forking(PLENTY) as client:
        tried(client, SCHEMA)
        wait_for(lambda: not forked_by(client))
        before = os.listdir(f"/proc/{client.pid}/fd")
        with client.fork_masks(descriptor) as steps, client.fork() as trial:
            wait_for(lambda: len(forked_by(client)) == 2)
            pid, other = forked_by(client)
            trial.sendall(encode_grammar(ENDLESS))
            steps.settimeout(HANG_S)
            if end is None:
                steps.shutdown(socket.SHUT_WR)
            else:
                os.kill(pid, end)
            assert steps.recv(1) == b"" and memory.notes[SIGNAL] == (end or 0)
            assert forked_by(client) == [other] and sum(memory.notes) == (end or 0)
            os.kill(other, signal.SIGKILL)
            received(trial)
        wait_for(lambda: len(os.listdir(f"/proc/{client.pid}/fd")) == len(before))
    os.close(descriptor)


def test_the_socket_of_a_process_of_masks_that_cannot_be_forked_ends(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fork_client, "_CHILD", NO_FORK)
    descriptor = new_memory_file(NOTES_BYTES)
    with forking() as client:
        tried(client, SCHEMA)
        wait_for(lambda: not forked_by(client))
        before = os.listdir(f"/proc/{client.pid}/fd")
        with client.fork_masks(descriptor) as steps:
            steps.settimeout(HANG_S)
            assert steps.recv(1) == b""
        wait_for(lambda: len(os.listdir(f"/proc/{client.pid}/fd")) == len(before))
    os.close(descriptor)


@pytest.mark.parametrize("is_short", [True, False])
def test_a_fork_that_fails_is_told_with_its_reason(is_short: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fork_client, "_CHILD", NO_FORK)
    with forking() as client:
        for _ in range(2):
            verdict, ended = tried(client, SCHEMA, is_short=is_short)
            assert verdict is None and ended.not_forked == "Resource temporarily unavailable"


def test_trials_end_with_the_server_that_asked_for_them():
    """As when the server was killed: it only closes its sockets."""
    with forking(PLENTY) as client, client.fork() as connection:
        connection.sendall(encode_grammar(ENDLESS))
        wait_for(lambda: forked_by(client))
        pids = [client.pid or 0, *forked_by(client)]
        assert client._control is not None
        client._control.close()
        wait_for(lambda: all(map(has_ended, pids)))


def test_a_hundred_trials_leave_no_process_and_no_descriptor():
    with forking() as client:
        tried(client, SCHEMA)
        gc.collect()
        here, there = os.listdir("/proc/self/fd"), os.listdir(f"/proc/{client.pid}/fd")
        for number in range(100):
            tried(client, Grammar(GrammarKind.REGEX, f"a{number}" if number % 2 else f"(?=a){number}"))
        wait_for(lambda: not forked_by(client))
        assert len(os.listdir("/proc/self/fd")) == len(here)
        assert len(os.listdir(f"/proc/{client.pid}/fd")) == len(there)


TEXT = 'Ein schöner Tag, the dog sleeps: {"a": 12} </s> ▁ <think> 你好🙂'


@pytest.mark.parametrize("kind", [*toys.KINDS, "gguf_byte_level", "gguf_sentencepiece", "placeholder"])
def test_a_tokenizer_is_the_same_in_the_other_process(kind: str):
    makers = {
        "placeholder": lambda: placeholder_tokenizer(600),
        "gguf_byte_level": lambda: gguf_tokenizer.load(gguf_toys.byte_level()),
        "gguf_sentencepiece": lambda: gguf_tokenizer.load(gguf_toys.sentencepiece()),
    }
    tokenizer = makers.get(kind, lambda: toys.toy(kind)[0])()
    other = Tokenizer.from_source(tokenizer.read_source())
    assert other.special_tokens == tokenizer.special_tokens and other.named_tokens == tokenizer.named_tokens
    assert (other.vocab_size, other.eos_token_id) == (tokenizer.vocab_size, tokenizer.eos_token_id)
    for is_literal in (False, True):
        ids = [each.encode(TEXT, add_special_tokens=not is_literal) for each in (tokenizer, other)]
        assert ids[0] == ids[1]
    assert other.has_token_bytes == tokenizer.has_token_bytes
    if tokenizer.has_token_bytes:
        masks = []
        for each in (tokenizer, other):
            vocabulary = GrammarVocabulary(each, each.vocab_size + 5, (2,))
            matcher = compile_grammar(Grammar(GrammarKind.REGEX, ".*"), vocabulary)
            masks.append([vocabulary.newline_id, matcher.compute_bitmask()])
        assert masks[0] == masks[1]


@pytest.mark.parametrize("padding", [-3, 0, 5])
@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece", "metaspace"])
def test_a_vocabulary_is_the_same_in_the_other_process(kind: str, padding: int):
    """Where it is made from the bytes that were sent: the same masks, and the same tokens of texts that must come."""
    tokenizer, _ = toys.toy(kind)
    size = tokenizer.vocab_size + padding
    _, file, _, tokens = greeting(tokenizer, size, (2,), PLENTY)
    other = Tokenizer.from_source(tokenizer.read_source()._replace(file=file))
    here = GrammarVocabulary(tokenizer, size, (2,))
    there = GrammarVocabulary(other, size, (2,), msgspec.msgpack.decode(tokens, type=list[bytes]))
    assert here.newline_id == there.newline_id
    for grammar in (
        Grammar(GrammarKind.REGEX, ".*"),
        Grammar(GrammarKind.CHOICE, '["the dog sleeps", "the dog </s>"]'),
    ):
        found = []
        for vocabulary in (here, there):
            matcher = compile_grammar(grammar, vocabulary)
            found.append((matcher.compute_bitmask(), matcher.compute_ff_tokens()))
        assert found[0] == found[1]


def test_the_tokenizers_file_is_sent_before_the_bytes_of_its_tokens_are_found(monkeypatch: pytest.MonkeyPatch):
    """So both processes work at the same time: with many tokens each takes long."""
    text, _ = toys.toy("byte_level")
    found: list[int] = []
    monkeypatch.setattr(text, "vocabulary_bytes", lambda count: found.append(count) or [b"a"] * count)
    parts = greeting(text, text.vocab_size, (1,), PLENTY)
    next(parts)
    assert next(parts) == text.read_source().file and not found
    assert len(list(parts)) == 2 and found == [text.vocab_size]


@pytest.mark.parametrize("share", [0, 0.1, 0.999])
def test_a_greeting_that_is_cut_ends_the_process_without_a_word(share: float):
    """As when the server ends while it sends it."""
    text, _ = toys.toy("byte_level")
    whole = b"".join(greeting(text, text.vocab_size, (1,), PLENTY))
    ours, theirs = socket.socketpair()
    code = "from app.text.grammar.children.fork_server import main; main()"
    with ours:
        with theirs:
            command = [sys.executable, "-c", code, str(theirs.fileno())]
            process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stderr=subprocess.PIPE)
        ours.sendall(whole[: int(len(whole) * share)])
        ours.shutdown(socket.SHUT_WR)
        _, errors = process.communicate(timeout=HANG_S)
        assert (process.returncode, errors, ours.recv(1)) == (0, b"", b"")
