"""The attacking process as the benchmark sees it: started, begun, ended."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from benchmarks.isolation.attack_table import ATTACKS, source_of
from benchmarks.server_process import ServerProcess

ATTACK_S = 30.0  # longest prompts and largest answers take longer than a row otherwise does
START_S = 60.0
END_S = 5.0


class AttackerProcess:
    """One attacking process, which waits for `begin`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None and process.stdout is not None
        self._process, self._input, self._output = process, process.stdin, process.stdout

    async def until_ready(self) -> None:
        """Wait until it can begin."""
        await asyncio.wait_for(self._output.readline(), START_S)

    async def attack(self, seconds: float) -> None:
        """Let it attack for `seconds`, and until it has had an answer, at most `ATTACK_S`."""
        self._input.write(b"begin\n")
        began = time.perf_counter()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._output.readline(), ATTACK_S)
        await asyncio.sleep(seconds - (time.perf_counter() - began))

    async def end(self) -> dict[str, int]:
        """Let it end, and return what came back to it.

        Raises:
            RuntimeError: it had failed.
        """
        self._input.close()
        try:
            lines = (await asyncio.wait_for(self._output.read(), START_S)).splitlines()
            answers: dict[str, int] = json.loads(lines[-1])
        except (IndexError, ValueError):
            raise RuntimeError("the attacking process has failed; its traceback is on stderr") from None
        return answers


@asynccontextmanager
async def attacking(name: str, server: ServerProcess, context: int) -> AsyncIterator[AttackerProcess]:
    """Start an attacking process; it has ended when the block has: by its input, or else by force."""
    setup = ATTACKS[name].setup
    key = [setup.attacker_key] if setup.attacker_key else []
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.isolation.attacker",
        name, server.target.url, str(context), source_of(name), *key,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    attacker = AttackerProcess(process)
    try:
        yield attacker
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), END_S)
        except TimeoutError:
            process.kill()
            await process.wait()
