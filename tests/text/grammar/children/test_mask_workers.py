"""Processes that find masks: one at a time, another one when it has ended, and nothing of them is left."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import pytest

from app.contract.grammar import Constraint, Grammar, GrammarKind
from app.text.grammar.children.fork_client import ForkClient
from app.text.grammar.children.mask_memory import MAIN, SIGNAL
from app.text.grammar.children.mask_messages import Setup, Start, Turn
from app.text.grammar.children.mask_workers import MaskWorkers
from app.text.grammar.children.shortage import Shortage
from app.text.grammar.vocabulary import mask_words
from tests.text import toys
from tests.text.grammar.children.scripted_process import ScriptedChildren
from tests.text.grammar.processes import HANG_S, children_of, many_descriptors, num_descriptors, wait_until

SETUP = Setup(num_threads=1, num_words=3, num_regions=4, eos_token_ids=(1,))


def workers_of(children: object, setup: Setup = SETUP) -> MaskWorkers:
    return MaskWorkers(lambda: cast(ForkClient, children), setup)


def test_nothing_is_started_before_the_first_process_is_needed():
    children = ScriptedChildren()
    workers = workers_of(children)
    assert workers.memory is None and workers.num_started == 0 and children.processes == []
    workers.close()
    assert workers.current() is None and children.processes == []


def test_there_is_one_process_until_it_has_ended():
    children = ScriptedChildren()
    workers = workers_of(children)
    first = workers.current()
    assert first is not None and workers.current() is first and workers.memory is not None
    workers.memory.notes[0], workers.memory.notes[2], workers.memory.notes[5] = 7, 8, 9
    workers.renew(first)
    assert first.culprit == 7 and first.suspects == {8, 9}
    second = workers.current()
    assert second is not None and second is not first and workers.num_started == 2
    assert not any(workers.memory.notes), "nothing that the first one has noted"
    workers.renew(first)
    assert workers.current() is second, "that one has ended long ago"
    assert first.culprit == 7
    workers.close()
    children.close()


@pytest.mark.parametrize(("end", "culprit"), [(signal.SIGPROF, 7), (signal.SIGKILL, 0)])
def test_the_signal_that_has_ended_a_process_tells_whether_its_only_sequence_is_to_blame(end: int, culprit: int):
    children = ScriptedChildren()
    workers = workers_of(children)
    link = workers.current()
    assert link is not None and workers.memory is not None
    workers.memory.notes[MAIN], workers.memory.notes[SIGNAL] = 7, end
    workers.renew(link)
    assert (link.culprit, link.suspects) == (culprit, {7})
    workers.close()
    children.close()


def test_a_socket_is_closed_when_nobody_waits_for_it_any_more():
    """The engine may wait for it while the server closes it: a number of a closed one is soon that of another one."""
    children = ScriptedChildren()
    workers = workers_of(children)
    link = workers.current()
    assert link is not None
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(link.read, HANG_S)
        wait_until(link._lock.locked)
        workers.close()
        assert waiting.result() is None and link.steps.fileno() == -1
    link.send(Turn())
    assert link.read(0.0) is None
    children.close()


def test_a_process_of_a_server_with_more_than_a_thousand_clients():
    children = ScriptedChildren()
    with many_descriptors():
        workers = workers_of(children)
        link = workers.current()
        assert link is not None and link.read(0.0) == []
        process = children.processes[-1]
        link.send(Turn(ends=(7,)))
        assert process.turns == [Turn(ends=(7,))]
        process.end()
        assert link.read(HANG_S) is None
        workers.close()
    children.close()


@pytest.mark.parametrize("error", [None, Shortage("Too many open files"), BrokenPipeError()])
def test_where_none_can_be_started_what_forks_is_started_again(
    error: Exception | None, monkeypatch: pytest.MonkeyPatch
):
    children = ScriptedChildren()
    workers = workers_of(children)
    if error is None:
        children.can_fork = False
    else:

        def fork(memory: int) -> None:
            raise error

        monkeypatch.setattr(children, "fork_masks", fork)
    assert workers.current() is None and workers.current() is None
    assert children.num_starts == 2 and workers.num_started == 0
    monkeypatch.undo()
    children.can_fork = True
    assert workers.current() is not None and children.num_starts == 2
    workers.close()
    children.close()


def test_without_a_model_there_is_no_process():
    workers = MaskWorkers(lambda: None, SETUP)
    assert workers.current() is None


def test_the_end_of_the_server_ends_all_processes():
    text, _ = toys.toy("byte_level")
    children = ForkClient(text, text.vocab_size, (1,))
    children.start()
    before = num_descriptors()
    workers = workers_of(children, Setup(2, mask_words(text.vocab_size), 4, (1,)))
    link = workers.current()
    assert link is not None and children.pid is not None
    link.send(Turn(starts=(Start(1, 0, "", Constraint(Grammar(GrammarKind.REGEX, "[ab]+")), (), 1),)))
    assert link.read(HANG_S)
    assert len(children_of(children.pid)) == 1
    workers.close()
    wait_until(lambda: not children_of(cast(int, children.pid)))
    del workers
    assert num_descriptors() == before, "the memory's are closed, too"
    pid = children.pid
    children.close()
    assert not os.path.exists(f"/proc/{pid}")
