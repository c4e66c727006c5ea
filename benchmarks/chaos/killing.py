"""One point: a server is killed while its answers are read, started again, and the answers go on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.chaos.company import Company
from benchmarks.chaos.points import OPTIONS, TWICE, Point, Situation
from benchmarks.resuming.asked import Asked
from benchmarks.resuming.mortal_server import MortalServer
from benchmarks.resuming.oracle import Oracle, reader_of


class Outcome(NamedTuple):
    """What came of one point.

    Attributes:
        had_tokens: the tokens that were received when the server was killed, the last time.
        first_tokens_s: the seconds from then to the first new token of each answer that was not over.
        num_continued: how many answers the server says that it has continued.
        faults: the answers that are not the undisturbed ones, and other failures.
    """

    point: Point
    had_tokens: int
    first_tokens_s: list[float]
    num_continued: int
    faults: list[str]

    def __str__(self) -> str:
        first = self.first_tokens_s
        wait = (
            f"first new token after {first[0]:.2f} s, the last one's after {first[-1]:.2f} s" if first else "all over"
        )
        word = f"{len(self.faults)} FAULTS" if self.faults else "all equal"
        return (
            f"{self.point.situation}: killed after {self.had_tokens:,} tokens, {self.num_continued} answers continued, "
            f"{wait}: {word}"
        )


async def kill_at(point: Point, model: str, asked: Sequence[Asked], oracle: Oracle, folder: Path) -> Outcome:
    """Kill a server at a point, with a journal of its own in the folder."""
    async with MortalServer(model, folder / f"journal-{point.number}", OPTIONS.get(point.situation, ())) as server:
        company = Company([reader_of(each, server.target) for each in asked])
        try:
            company.start()
            await _read_until_kill(point, server, company)
            had_tokens = company.num_tokens
            company.note_kill()
            await server.until_dead()
            await server.start()
            await server.until_ready()
            faults = await company.finish(oracle)
            num_continued = int(await server.metric("quire_streams_restored_total"))
        finally:
            company.stop()
    faults += [f"process {pid} has outlived its server" for pid in server.orphans]
    return Outcome(point, had_tokens, company.first_tokens_s, num_continued, faults)


async def _read_until_kill(point: Point, server: MortalServer, company: Company) -> None:
    first = {Situation.DRAIN: server.drain, Situation.DEGRADED: lambda: None}.get(point.situation, server.kill)
    await company.when(
        lambda: company.num_accepted >= point.num_accepted and company.num_tokens >= point.num_tokens, first
    )
    if point.situation is Situation.DEGRADED:
        await server.fill_disk()
    elif point.situation is Situation.RESTORE:
        await server.until_dead()
        await server.start()
    if point.situation in TWICE:
        wanted = company.num_tokens + point.num_later
        await company.when(lambda: company.num_tokens >= wanted, server.kill)
