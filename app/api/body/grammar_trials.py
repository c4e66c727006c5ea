"""Clients' grammars: each is tried in a process of its own before an answer uses it (see text/grammar/children)."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from math import ceil

from app.contract.errors import CannotStart, Draining, EngineFailed, RateLimitExceeded
from app.contract.grammar import Grammar
from app.streaming.background import Background, FairSemaphore
from app.text.grammar.cache import TOO_COSTLY_A_MINUTE, GrammarCache
from app.text.grammar.children.shortage import Shortage
from app.text.grammar.children.trial import Ended, Verdict, encode_grammar, read_trial
from app.text.grammar.grammar_entries import Lease, Rejection

MAX_WAITING = 256
# Trials that take this long, in seconds of processor time, count against the account's allowance.
EXPENSIVE_S = 0.25
NUM_TRIES = 2
_SIMPLER = (
    "Send a simpler one: with smaller repetitions, lengths and multipleOf, or fewer patterns that one text must match."
)

Fork = Callable[[], socket.socket]
"""Has a process forked for a trial."""

_log = logging.getLogger("quire.grammars")


class GrammarTrials:
    """Leases grammars for clients. Loop only.

    A grammar has a short trial first, and a whole one if that was not enough. One of each kind runs at a time, so that
    nobody's ordinary grammar waits for long trials, and these for none but each other; accounts take turns in both.
    Requests of an account for the same grammar share its trials. An account whose trials were expensive too often must
    wait before it may send another new grammar.
    """

    def __init__(self, cache: GrammarCache, threads: Background) -> None:
        self._cache = cache
        self._threads = threads
        self._short, self._whole = (FairSemaphore(1, MAX_WAITING) for _ in range(2))
        self._trials: dict[tuple[Grammar, str], asyncio.Task[None]] = {}
        self._is_closed = False
        self._is_short = False  # of what a trial needs; said once until the next trial

    async def lease(self, grammar: Grammar, account: str) -> Lease:
        """Return a lease of a grammar, after its trial if it is new. Cancel-safe: its trial goes on.

        Raises:
            InvalidValue: the grammar is rejected; GrammarTooCostly where its trial has come to a limit.
            UnsupportedParameter: the model supports no grammars.
            Overloaded: too many grammars wait for a trial, or are in use, or the system has too little for
                a trial (Shortage).
            RateLimitExceeded: too many of the account's trials were expensive, or too many of its answers.
            EngineFailed: no process can try it.
            Draining: `close` was called.
        """
        if wait_s := self._cache.costly.seconds_left(account):
            raise RateLimitExceeded(
                f"{TOO_COSTLY_A_MINUTE} of your answers with grammars cost too much within a minute: their next tokens "
                "took too much processor time or memory to find. Others are accepted again in "
                f"{ceil(wait_s)} s. Send simpler grammars.",
                retry_after_s=ceil(wait_s),
            )
        while (lease := self._cache.lease_decided(grammar, account)) is None:
            await asyncio.shield(self._trials.get((grammar, account)) or self._begin(grammar, account))
        return lease

    def close(self) -> None:
        """End all trials, and the process that forks them. Idempotent."""
        self._is_closed = True
        self._short.release_all()
        self._whole.release_all()
        self._cache.close()

    def _begin(self, grammar: Grammar, account: str) -> asyncio.Task[None]:
        self._check_allowance(account)
        trial = asyncio.get_running_loop().create_task(self._admit(grammar, account))
        self._trials[grammar, account] = trial
        trial.add_done_callback(lambda trial: self._end(grammar, account, trial))
        return trial

    def _end(self, grammar: Grammar, account: str, trial: asyncio.Task[None]) -> None:
        """Forget a trial. Its exception is retrieved: asyncio would log it if all who wait for it are gone."""
        del self._trials[grammar, account]
        if not trial.cancelled():
            trial.exception()

    def _check_allowance(self, account: str) -> None:
        if wait_s := self._cache.expensive.seconds_left(account):
            raise RateLimitExceeded(
                f"{TOO_COSTLY_A_MINUTE} of your new grammars within a minute took {EXPENSIVE_S:g} s of processor time "
                f"or more to compile, or came to a limit; new ones are accepted again in {ceil(wait_s)} s. Until "
                "then send grammars that were accepted before, and simpler ones afterwards.",
                retry_after_s=ceil(wait_s),
            )

    async def _admit(self, grammar: Grammar, account: str) -> None:
        """Try a grammar; keep what comes of it. It is there until others need its room."""
        children = self._cache.children
        if children is None:  # one that is no client's, or there are none for this model
            (await self._threads.run(self._cache.lease, grammar, account, account=account)).release()
            return
        lease = await self._in_turn(self._short, grammar, account, children.fork_short)
        lease = lease or await self._in_turn(self._whole, grammar, account, children.fork)
        assert lease is not None
        lease.release()

    async def _in_turn(self, permit: FairSemaphore, grammar: Grammar, account: str, fork: Fork) -> Lease | None:
        """Try a grammar when it is its account's turn; None if it needs a longer trial."""
        await permit.acquire(account)
        try:
            if (lease := self._cache.lease_decided(grammar, account)) is not None:
                return lease  # another account has sent it meanwhile
            self._check_allowance(account)
            return await self._try(grammar, account, fork)
        finally:
            permit.release()

    async def _try(self, grammar: Grammar, account: str, fork: Fork) -> Lease | None:
        """Try a grammar; keep its rejection, or lease it; None if it needs a longer trial."""
        verdict, ended = await self._outcome(grammar, account, fork)
        if ended.needs_longer:
            return None
        self._cache.note_compiled(ended.cpu_s)
        if ended.cpu_s >= EXPENSIVE_S or ended.limit is not None:
            self._cache.expensive.take(account)
        rejection = None
        if ended.limit is not None:
            rejection = Rejection(f"{ended.limit} {_SIMPLER}", is_too_costly=True)
        elif verdict is not None and verdict.rejection is not None:
            rejection = Rejection(verdict.rejection, verdict.param)
        if rejection is not None:
            self._cache.reject(grammar, rejection, account)
            raise rejection.error()
        plain = grammar
        if verdict is not None and verdict.lark is not None:
            plain = replace(grammar, source=verdict.lark, gbnf=None)
        return self._cache.accept(grammar, plain, account, ended.num_bytes, ended.cpu_s)

    async def _outcome(self, grammar: Grammar, account: str, fork: Fork) -> tuple[Verdict | None, Ended]:
        """Return a trial's verdict and how it ended; one that somebody else has ended is repeated once."""
        for _ in range(NUM_TRIES):
            if self._is_closed:
                raise Draining("The server is shutting down.")
            try:
                data = await _exchange(await self._forked(account, fork), encode_grammar(grammar))
                verdict, ended = read_trial(data)
                if ended.not_forked is not None:
                    raise Shortage(ended.not_forked)
            except CannotStart as error:
                _log.error("%s", error.message)
                continue
            except Shortage as error:
                if not self._is_short:
                    _log.error("grammars cannot be tried: %s; until then new ones get 503", error.reason)
                self._is_short = True
                raise
            self._is_short = False
            if verdict is not None or ended.limit is not None or ended.needs_longer:
                return verdict, ended
            _log.warning("the trial of a grammar has ended without a result (%s)", ended)
        raise EngineFailed("The grammar could not be tried; see the server log. Try again.")

    async def _forked(self, account: str, fork: Fork) -> socket.socket:
        """Have a process forked, by one that is started where none runs."""
        assert self._cache.children is not None
        with suppress(CannotStart):
            return fork()
        await self._threads.run(self._cache.children.start, account=account)
        return fork()


async def _exchange(connection: socket.socket, line: bytes) -> bytes:
    """Send a line, and return all that comes back until the other end is closed."""
    reader, writer = await asyncio.open_unix_connection(sock=connection)
    try:
        writer.write(line)
        return await reader.read()
    except OSError:
        return b""
    finally:
        writer.close()
