"""Clients' grammars: each is tried in a process of its own before it is compiled (see text/grammar/children)."""

from __future__ import annotations

import asyncio
import logging
import socket
from contextlib import suppress
from dataclasses import replace
from math import ceil

from app.contract.errors import (
    CannotStart,
    Draining,
    EngineFailed,
    RateLimitExceeded,
)
from app.contract.grammar import Grammar
from app.runtime.clock import Clock, monotonic
from app.runtime.token_bucket import TokenBuckets
from app.streaming.background import Background, FairSemaphore
from app.text.grammar.cache import GrammarCache, Lease, Rejection
from app.text.grammar.children.fork_client import ForkClient
from app.text.grammar.children.trial import Ended, Verdict, encode_grammar, read_trial

MAX_WAITING = 256
# Trials that take this long, in seconds of processor time, count against the account's allowance.
EXPENSIVE_S = 0.25
EXPENSIVE_A_MINUTE = 4
NUM_TRIES = 2
_SIMPLER = (
    "Send a simpler one: with smaller repetitions, lengths and multipleOf, or fewer patterns that one text must match."
)

_log = logging.getLogger("quire.grammars")


class GrammarTrials:
    """Leases grammars for clients. Loop only.

    One trial runs at a time; accounts take turns. Requests of an account for the same grammar share its trial. An
    account whose trials were expensive too often must wait before it may send another new grammar.
    """

    def __init__(self, cache: GrammarCache, threads: Background, clock: Clock = monotonic) -> None:
        self._cache = cache
        self._threads = threads
        self._permit = FairSemaphore(1, MAX_WAITING)
        self._trials: dict[tuple[Grammar, str], asyncio.Task[None]] = {}
        self._expensive = TokenBuckets(EXPENSIVE_A_MINUTE / 60, EXPENSIVE_A_MINUTE, clock)
        self._is_closed = False

    async def lease(self, grammar: Grammar, account: str) -> Lease:
        """Return a lease of a grammar, after its trial if it is new, and compiled. Cancel-safe: its trial goes on.

        Raises:
            InvalidValue: the grammar is rejected; GrammarTooCostly where its trial has come to a limit.
            UnsupportedParameter: the model supports no grammars.
            Overloaded: too many grammars wait for a trial, or are in use.
            RateLimitExceeded: too many of the account's trials were expensive.
            EngineFailed: no process can try it.
            Draining: `close` was called.
        """
        while (lease := self._cache.lease_decided(grammar, account)) is None:
            await asyncio.shield(self._trials.get((grammar, account)) or self._begin(grammar, account))
        return lease

    def close(self) -> None:
        """End all trials, and the process that forks them. Idempotent."""
        self._is_closed = True
        self._permit.release_all()
        if self._cache.children is not None:
            self._cache.children.close()

    def _begin(self, grammar: Grammar, account: str) -> asyncio.Task[None]:
        self._check_allowance(account)
        trial = asyncio.get_running_loop().create_task(self._compile(grammar, account))
        self._trials[grammar, account] = trial
        trial.add_done_callback(lambda trial: self._end(grammar, account, trial))
        return trial

    def _end(self, grammar: Grammar, account: str, trial: asyncio.Task[None]) -> None:
        """Forget a trial. Its exception is retrieved: asyncio would log it if all who wait for it are gone."""
        del self._trials[grammar, account]
        if not trial.cancelled():
            trial.exception()

    def _check_allowance(self, account: str) -> None:
        if wait_s := self._expensive.seconds_left(account):
            raise RateLimitExceeded(
                f"Your last {EXPENSIVE_A_MINUTE} expensive grammars took more than {EXPENSIVE_S:g} s of processor time "
                f"each to compile; new ones are accepted again in {ceil(wait_s)} s. Until then send grammars that were "
                "accepted before; send simpler ones afterwards.",
                retry_after_s=ceil(wait_s),
            )

    async def _compile(self, grammar: Grammar, account: str) -> None:
        """Compile a grammar after its trial; keep its rejection. It is there until others need its room."""
        plain, children = grammar, self._cache.children
        if children is not None:
            await self._permit.acquire(account)
            try:
                if (lease := self._cache.lease_decided(grammar, account)) is not None:
                    lease.release()
                    return  # another account has sent it meanwhile
                self._check_allowance(account)
                plain = await self._try(grammar, account, children)
            finally:
                self._permit.release()
        lease = await self._threads.run(self._cache.lease, grammar, account, plain, account=account)
        lease.release()

    async def _try(self, grammar: Grammar, account: str, children: ForkClient) -> Grammar:
        """Try a grammar; keep its rejection. Return what it is without GBNF."""
        verdict, ended = await self._outcome(grammar, account, children)
        if ended.cpu_s >= EXPENSIVE_S or ended.limit is not None:
            self._expensive.take(account)
        rejection = None
        if ended.limit is not None:
            rejection = Rejection(f"{ended.limit} {_SIMPLER}", is_too_costly=True)
        elif verdict is not None and verdict.rejection is not None:
            rejection = Rejection(verdict.rejection, verdict.param)
        if rejection is not None:
            self._cache.reject(grammar, rejection, account)
            raise rejection.error()
        if verdict is None or verdict.lark is None:
            return grammar
        return replace(grammar, source=verdict.lark, gbnf=None)

    async def _outcome(self, grammar: Grammar, account: str, children: ForkClient) -> tuple[Verdict | None, Ended]:
        """Return what a trial says and how it ended; one that somebody else has ended is repeated once."""
        for _ in range(NUM_TRIES):
            if self._is_closed:
                raise Draining("The server is shutting down.")
            try:
                data = await _exchange(await self._fork(account, children), encode_grammar(grammar))
            except CannotStart as error:
                _log.error("%s", error.message)
                continue
            verdict, ended = read_trial(data)
            if verdict is not None or ended.limit is not None:
                return verdict, ended
            _log.warning("the trial of a grammar has ended without a result (%s)", ended)
        raise EngineFailed("The grammar could not be tried; see the server log. Try again.")

    async def _fork(self, account: str, children: ForkClient) -> socket.socket:
        """Have a process forked, by one that is started where none runs."""
        with suppress(CannotStart):
            return children.fork()
        await self._threads.run(children.start, account=account)
        return children.fork()


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
