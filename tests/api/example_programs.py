"""Runs the programs that the documentation shows."""

from __future__ import annotations

import asyncio
import os

from tests.api.serving import HANG_S


async def output_of(*program: str) -> bytes:
    """Run a program, and return what it prints."""
    process = await asyncio.create_subprocess_exec(
        *program,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | {"NO_PROXY": "127.0.0.1"},
    )
    async with asyncio.timeout(HANG_S):
        output, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    return output
