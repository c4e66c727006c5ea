"""Messages between the engine and the process that finds masks: whole in any pieces, and unchanged."""

from __future__ import annotations

import random
import socket

import pytest

from app.contract.grammar import Constraint, Grammar, GrammarKind, ReasoningMarks
from app.text.grammar.children.mask_messages import (
    Draft,
    Drafted,
    Messages,
    Ready,
    Reply,
    Setup,
    Start,
    Take,
    Took,
    Turn,
    encode,
    read_message,
)

CONSTRAINT = Constraint(
    Grammar(GrammarKind.CALLS, "x" * 70_000, follows_reasoning=True), ReasoningMarks(3, 4, is_inside=True), 5
)
TURNS = [
    Turn(),
    Turn(ends=(1, 2**63), starts=(Start(3, -1, "a", CONSTRAINT, tuple(range(2000)), 2**40),)),
    Turn(takes=(Take(3, 4, ()), Take(5, 6, (7, 8))), drafts=(Draft(9, 10, (11,)),)),
]
REPLIES = [
    Reply(took=(Took(1, 2, True, None),)),
    Reply(ready=(Ready(1, 2, False, "Ü", (3, 4)),), drafted=(Drafted(5, 6), Drafted(7, 0, True))),
]


@pytest.mark.parametrize("messages", [TURNS, REPLIES], ids=["turns", "replies"])
def test_messages_are_whole_whatever_pieces_they_come_in(messages: list):
    data = b"".join(map(encode, messages))
    for seed in range(20):
        rng, reader, found, start = random.Random(seed), Messages(type(messages[0])), [], 0
        while start < len(data):
            size = rng.choice((1, 3, 5, 100, 10_000, len(data)))
            found += reader.feed(data[start : start + size])
            start += size
        assert found == messages


def test_each_message_is_given_as_soon_as_its_last_byte_is_there():
    reader, data = Messages(Turn), encode(TURNS[2])
    assert [len(reader.feed(data[i : i + 1])) for i in range(len(data))] == [0] * (len(data) - 1) + [1]


def test_a_message_is_read_from_its_socket():
    message = Setup(2, 97, 12, (1, 2))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.setblocking(False)
        sent = encode(message)
        theirs.sendall(sent[:3])
        theirs.sendall(sent[3:])
        theirs.shutdown(socket.SHUT_WR)
        assert read_message(ours, Setup) == message
        assert read_message(ours, Setup) is None


def test_a_message_that_is_cut_off_is_none():
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            theirs.sendall(encode(Setup(2, 97, 12, ()))[:-1])
        assert read_message(ours, Setup) is None
