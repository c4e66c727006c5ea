"""Clients' grammars: each is tried in a process of its own before it is compiled (see text/grammar/children)."""

from __future__ import annotations

import asyncio
import logging
import socket
from dataclasses import replace
from math import ceil

from app.contract.errors import (
    CannotStart,
    EngineFailed,
    RateLimitExceeded,
    UnsupportedParameter,
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

_log = logging.getLogger("quire.grammars")


class GrammarTrials:
    """Leases grammars for clients. Loop only.

    One trial runs at a time; accounts take turns. Requests for the same grammar share its trial. An account whose
    trials were expensive too often must wait before it may send another new grammar.
    """

    def __init__(self, cache: GrammarCache, threads: Background, clock: Clock = monotonic) -> None:
        self._cache = cache
        self._threads = threads
        self._permit = FairSemaphore(1, MAX_WAITING)
        self._trials: dict[Grammar, asyncio.Task[Grammar]] = {}
        self._expensive = TokenBuckets(EXPENSIVE_A_MINUTE / 60, EXPENSIVE_A_MINUTE, clock)

    async def lease(self, grammar: Grammar, account: str) -> Lease:
        """Return a lease of a grammar, after its trial if it is new, and compiled. Cancel-safe: its trial goes on.

        Raises:
            InvalidValue: the grammar is rejected; GrammarTooCostly where its trial has come to a limit.
            UnsupportedParameter: the model supports no grammars.
            Overloaded: too many grammars wait for a trial, or are in use.
            RateLimitExceeded: too many of the account's trials were expensive.
            EngineFailed: no process can try it.
        """
        if self._cache.is_decided(grammar):
            return self._cache.lease(grammar, account)
        children, plain = self._cache.children, grammar
        if children is not None:
            trial = self._trials.get(grammar)
            if trial is None:
                self._check_allowance(account)
                trial = asyncio.get_running_loop().create_task(self._try(grammar, account, children))
                self._trials[grammar] = trial
                trial.add_done_callback(lambda trial: self._end(grammar, trial))
            plain = await asyncio.shield(trial)
        return await self._threads.run(self._cache.lease, grammar, account, plain, account=account)

    def close(self) -> None:
        """End all trials, and the process that forks them. Does not block. Idempotent."""
        for trial in self._trials.values():
            trial.cancel()
        if self._cache.children is not None:
            self._cache.children.close()

    def _end(self, grammar: Grammar, trial: asyncio.Task[Grammar]) -> None:
        """Forget a trial. Its exception is retrieved: asyncio would log it if all who wait for it are gone."""
        del self._trials[grammar]
        if not trial.cancelled():
            trial.exception()

    def _check_allowance(self, account: str) -> None:
        if wait_s := self._expensive.seconds_left(account):
            raise RateLimitExceeded(
                f"Grammars that took more than {EXPENSIVE_S:g} s to compile came {EXPENSIVE_A_MINUTE} times within a "
                f"minute; new ones are accepted again in {ceil(wait_s)} s. Send simpler grammars, or known ones.",
                retry_after_s=ceil(wait_s),
            )

    async def _try(self, grammar: Grammar, account: str, children: ForkClient) -> Grammar:
        """Try a grammar; keep its rejection. Return what it is without GBNF."""
        await self._permit.acquire(account)
        try:
            self._check_allowance(account)
            verdict, ended = await self._outcome(grammar, account, children)
        finally:
            self._permit.release()
        if ended.cpu_s >= EXPENSIVE_S or ended.limit is not None:
            self._expensive.take(account)
        rejection = None
        if ended.limit is not None:
            rejection = Rejection(f"{ended.limit}.", is_too_costly=True)
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
            try:
                if children.pid is None:
                    await self._threads.run(children.start, account=account)
                data = await _exchange(children.fork(), encode_grammar(grammar))
            except UnsupportedParameter:
                raise
            except CannotStart as error:
                _log.error("%s", error.message)
                continue
            verdict, ended = read_trial(data)
            if ended is not None and (verdict is not None or ended.limit is not None):
                return verdict, ended
            _log.warning("the trial of a grammar has ended without a result (%s)", ended)
        raise EngineFailed("The grammar could not be tried; see the server log. Try again.")


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
