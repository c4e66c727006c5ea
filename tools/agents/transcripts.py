"""The transcripts of agents that the tests play, compared with what the agents send now."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tools.agents.shapes import facts_of, shape_of

FOLDER = Path(__file__).parents[2] / "tests" / "agents"


def differences(client: str, requests: Sequence[Mapping[str, Any]], folder: Path = FOLDER) -> Iterator[str]:
    """Yield what a client has sent, as `Recorder` writes it, and no transcript of it in the folder has.

    What a transcript has and the client has not sent here is no difference: transcripts have more than one scenario.
    """
    files = sorted(folder.glob(f"{client}*.json"))
    if not files:
        yield f"there is none in {folder}"
        return
    known = {
        fact for file in files for body in bodies_in(json.loads(file.read_text())) for fact in facts_of(shape_of(body))
    }
    sent = {fact for request in requests if "body" in request for fact in facts_of(request["body"])}
    yield from sorted(sent - known)


def bodies_in(transcript: object) -> Iterator[Mapping[str, Any]]:
    """Yield the bodies of requests in a transcript: the objects with messages or input."""
    if isinstance(transcript, Mapping):
        if "messages" in transcript or "input" in transcript:
            yield transcript
        else:
            for value in transcript.values():
                yield from bodies_in(value)
    elif isinstance(transcript, list):
        for value in transcript:
            yield from bodies_in(value)
