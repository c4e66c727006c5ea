"""Responses that a kill -9 of the server cuts: the next process goes on with the same events and numbers."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.processes import HANG_S
from tests.server.quick_start import serving

PATH = "/v1/responses"
BODY = {"input": "What is Quire?", "max_output_tokens": 300, "ignore_eos": True, "seed": 5, "background": True}


def events_in(body: str) -> list[dict[str, Any]]:
    """The events of a stream that came whole."""
    blocks = body[: body.rindex("\n\n")].split("\n\n")
    return [json.loads(line[6:]) for block in blocks for line in block.splitlines() if line.startswith("data: ")]


def text_of(response: dict[str, Any]) -> str:
    """The text of a response."""
    return "".join(part["text"] for item in response["output"] for part in item["content"])


@pytest.fixture(scope="module")
def undisturbed() -> dict[str, Any]:
    """The response to the body, and that to the next turn of its conversation."""
    with serving() as server, httpx.Client(base_url=server.url, timeout=HANG_S) as client:
        server.wait_until_ready()
        whole = client.post(PATH, json={**BODY, "background": False}).json()
        next_turn = {**BODY, "background": False, "previous_response_id": whole["id"], "max_output_tokens": 20}
        return {"whole": whole, "next": client.post(PATH, json=next_turn).json()}


@pytest.mark.parametrize("count", [3, 60])
def test_a_killed_server_goes_on_with_a_response_in_the_background(
    count: int, tmp_path: Path, undisturbed: dict[str, Any]
):
    options = ("--journal", str(tmp_path / "journal"))
    with serving(*options) as server, httpx.Client(base_url=server.url, timeout=HANG_S) as client:
        server.wait_until_ready()
        text = ""
        with client.stream("POST", PATH, json={**BODY, "stream": True}) as response:
            for piece in response.iter_text():
                text += piece
                if text.count("\n\n") >= count:
                    break
            server.process.send_signal(signal.SIGKILL)
        server.process.wait(HANG_S)
    had = events_in(text)
    response_id = had[0]["response"]["id"]
    with serving(*options) as server, httpx.Client(base_url=server.url, timeout=HANG_S) as client:
        server.wait_until_ready()
        query = {"stream": "true", "starting_after": str(had[-1]["sequence_number"])}
        rest = events_in(client.get(f"{PATH}/{response_id}", params=query).text)
        whole = events_in(client.get(f"{PATH}/{response_id}", params={"stream": "true"}).text)
        assert [*had, *rest] == whole
        assert [event["sequence_number"] for event in whole] == [*range(len(whole))]
        assert whole[-1]["type"] == "response.incomplete" and whole[-1]["response"]["status"] == "incomplete"
        assert text_of(whole[-1]["response"]) == text_of(undisturbed["whole"])
        continued = [line for line in client.get("/metrics").text.splitlines() if 'outcome="continued"' in line]
        assert continued[0].endswith(" 1.0") or continued[0].endswith(" 1"), "it had ended before the kill"
        next_turn = {**BODY, "background": False, "previous_response_id": response_id, "max_output_tokens": 20}
        assert text_of(client.post(PATH, json=next_turn).json()) == text_of(undisturbed["next"])
