"""Claude Code, Codex and opencode against the server: `python -m tools.agents [CLIENT ...]`, or `make agents`.

Each is installed from npm, gets a clean home, and works in a network that has no way out (`closed_network`) with a
model that calls its tools by a script: it reads a file, edits it and answers; the server is started again; it goes on
with its session. So over each wire that it speaks. A request that is refused, and a connection to any other host, is a
failure. The shapes of all requests are written to OUT, and compared with the transcripts that the tests play.

Exit codes: 0 all is well, 1 something is not, 75 it could not be tried: npm cannot be reached, or this machine permits
no namespaces.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tools.agents.clients import Setup, setups
from tools.agents.closed_network import Departures, NoNamespace, again, inside
from tools.agents.packages import PACKAGES, VERSIONS, CannotInstall, install
from tools.agents.scenario import URL, Outcome, play
from tools.agents.transcripts import differences

CANNOT_TRY = 75


def main(arguments: Sequence[str]) -> int:
    """Install the clients, run them, and say what they did; return an exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.agents")
    parser.add_argument("clients", nargs="*", metavar="CLIENT", help=f"{', '.join(PACKAGES)}; all by default")
    parser.add_argument("--wire", help="only this one: chat, messages, responses, responses-websocket")
    parser.add_argument("--folder", type=Path, help="where homes and logs are kept; by default they are deleted")
    parser.add_argument("--out", type=Path, help="file for the shapes of all requests, as JSON")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    wrong = [name for name in options.clients if name not in PACKAGES]
    if wrong:
        parser.error(f"{wrong[0]!r} is no client; use {', '.join(PACKAGES)}")
    try:
        programs = install(options.clients or [*PACKAGES])
        if not options.inside:
            command = inside(again("tools.agents", "--inside", *arguments))
            os.execvp(command[0], command)
        with tempfile.TemporaryDirectory(prefix="quire-agents-") as scratch:
            chosen = [each for each in setups(URL) if each.client in programs and options.wire in (None, each.wire)]
            return _try_all(chosen, programs, options.folder or Path(scratch), options.out)
    except (CannotInstall, NoNamespace) as error:
        print(error, file=sys.stderr)
        return CANNOT_TRY


def _try_all(chosen: Sequence[Setup], programs: dict[str, Path], folder: Path, out: Path | None) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    departures = Departures(folder)
    outcomes: dict[str, Outcome] = {}
    for setup in chosen:
        print(f"{setup.client} {VERSIONS[setup.client]} over {setup.wire}", flush=True)
        outcome = outcomes[setup.name] = play(setup, programs[setup.client], folder / setup.name, departures.take)
        for problem in outcome.problems:
            print(f"  FAILED {problem}")
        if not outcome.problems:
            print("  read, edited and answered, twice, with a restart of the server between")
        if outcome.num_tokens:
            print(f"  prompts of {', '.join(f'{number:,}' for number in outcome.num_tokens)} tokens")
        for difference in differences(setup, outcome.requests):
            print(f"  differs from the transcripts: {difference}")
        sys.stdout.flush()
    if out is not None:
        shapes = {name: outcome.requests for name, outcome in outcomes.items()}
        out.write_text(json.dumps(shapes, indent=1, ensure_ascii=False) + "\n")
    return int(any(outcome.problems for outcome in outcomes.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
