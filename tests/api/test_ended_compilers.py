"""A grammar that is to be compiled by a process that ends: the loop learns of it, whoever notices first."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from app.api.grammar_trials import _compiled
from app.contract.grammar import Grammar, GrammarKind
from app.text.grammar.children.fork_client import ForkClient
from app.text.grammar.children.mask_messages import Compiled, Setup, encode
from app.text.grammar.children.mask_workers import MaskWorkers
from tests.text.grammar.children.scripted_process import ScriptedChildren

GRAMMAR = Grammar(GrammarKind.REGEX, "a")
HANG_S = 60.0


@pytest.mark.parametrize("first", ["engine", "loop"])
async def test_the_loop_does_not_wait_for_a_process_that_has_ended(first: str):
    children = ScriptedChildren()
    workers = MaskWorkers(lambda: cast(ForkClient, children), Setup(1, 3, 4, ()))
    link = workers.current()
    assert link is not None
    compiling = asyncio.create_task(_compiled(link, GRAMMAR))
    await asyncio.sleep(0)  # it waits for the socket now
    if first == "engine":
        workers.renew(link)  # what the engine's thread does at the end of its own socket
        link = None
    else:
        children.processes[0].end()
    assert await asyncio.wait_for(compiling, HANG_S) is None
    workers.close()
    children.close()


async def test_what_the_process_says_is_returned():
    children = ScriptedChildren()
    workers = MaskWorkers(lambda: cast(ForkClient, children), Setup(1, 3, 4, ()))
    link = workers.current()
    assert link is not None
    children.processes[0]._their_compiles.sendall(encode(Compiled("It is too large.")))
    assert await asyncio.wait_for(_compiled(link, GRAMMAR), HANG_S) == Compiled("It is too large.")
    workers.close()
    children.close()
