"""The transcripts of agents that the tests play, compared with what the agents send now."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.agents import play
from tools.agents.clients import Setup
from tools.agents.shapes import facts_of, shape_of

FOLDER = Path(play.__file__).parent


def differences(setup: Setup, requests: Sequence[Mapping[str, Any]], folder: Path = FOLDER) -> Iterator[str]:
    """Yield what a client has sent, as `Recorder` writes it, and its transcript in the folder has not.

    What the transcript has alone is no difference: it has more scenes than are played here.
    """
    transcript = _transcript_of(setup, folder)
    if transcript is None:
        yield f"{folder.name} has none of {setup.client} over {setup.wire}"
        return
    known = {fact for request in play.requests(transcript) for fact in facts_of(shape_of(request.body))}
    sent = {fact for request in requests for fact in facts_of(request.get("body", {}))}
    yield from sorted(sent - known)


def _transcript_of(setup: Setup, folder: Path) -> Mapping[str, Any] | None:
    for file in sorted(folder.glob("*.json")):
        transcript = play.load(file)
        client, wire = transcript["client"].lower().replace(" ", "-"), transcript["wire"].replace("_", "-")
        if client.startswith(setup.client) and wire == setup.wire:
            return transcript
    return None
