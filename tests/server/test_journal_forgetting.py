"""Ten seconds after an answer is not kept any longer, neither it nor its prompt is in a byte of the journal's folder.

The server has the times that users have; what a busy machine adds to them does not count.
"""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from tests.server.processes import HANG_S, RunningServer
from tests.server.quick_start import serving
from tests.server.resumed_sockets import CREDIT, ENDS, frames_until, opened, send

FORGOTTEN_S = 10.0
PIECE = 16  # bytes: too many to be there by chance
PROMPT, OTHER = "Which lighthouse was silent that winter?", "Hidden harbours: name some of them, please."
TTL_S, LONG_TTL_S = 1.0, 3600.0


class Told(NamedTuple):
    """An answer that was told whole."""

    path: str
    prompt: str
    answer: str


def sampling(prompt: str) -> dict[str, object]:
    """Fields for answers that have no piece in common."""
    return {"seed": len(prompt), "temperature": 2, "ignore_eos": True}


def stream(client: httpx.Client, prompt: str, ttl_s: float, *, is_deleted: bool = False) -> Told:
    """Read an answer over quire.v1 to its end, or to that which a DELETE makes."""
    messages, answer = [{"role": "user", "content": prompt}], ""
    asked = {"messages": messages, "max_tokens": 1000 if is_deleted else 40, **sampling(prompt)}
    with opened(client) as socket:
        send(socket, t="start", id="a", request=asked, ttl_s=ttl_s, credit=CREDIT)
        path = f"/v1/streams/{next(frames_until(socket, 'accepted'))['stream']}"
        for frame in frames_until(socket, *ENDS):
            answer += frame.get("x", "")
            if is_deleted and len(answer.encode()) > PIECE:
                is_deleted = False
                assert client.delete(path).status_code == 204
    return Told(path, prompt, answer)


def response(client: httpx.Client, prompt: str) -> Told:
    """Read a response that is kept."""
    asked = {"input": prompt, "max_output_tokens": 40, **sampling(prompt)}
    told = client.post("/v1/responses", json=asked).raise_for_status().json()
    text = "".join(part["text"] for item in told["output"] for part in item["content"])
    return Told(f"/v1/responses/{told['id']}", prompt, text)


def found(folder: Path, told: Told) -> set[str]:
    """Which texts have a part that is in one of the files."""
    files = [file.read_bytes() for file in folder.iterdir()]

    def has_part(text: bytes) -> bool:
        pieces = {text[first : first + PIECE] for first in range(len(text) - PIECE + 1)}
        return any(piece in file for piece in pieces for file in files)

    return {name for name, text in told._asdict().items() if name != "path" and has_part(text.encode())}


def recorded(client: httpx.Client, folder: Path, tell: Callable[[], Told]) -> Told:
    """Tell an answer again until a part of it is in the files: none is, where a busy machine writes token by token."""
    deadline = time.monotonic() + HANG_S
    while found(folder, told := tell()) != {"prompt", "answer"}:
        assert time.monotonic() < deadline
        client.delete(told.path)
    return told


def waited_s(server: RunningServer) -> float:
    """How long this thread, and those of the server, were ready to run and had no core."""
    seconds = 0.0
    for task in (Path("/proc/thread-self"), *Path(f"/proc/{server.process.pid}/task").iterdir()):
        with suppress(OSError):  # a thread may end meanwhile
            seconds += int((task / "schedstat").read_text().split()[1]) / 1e9
    return seconds


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + HANG_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def check_forgotten(server: RunningServer, folder: Path, told: Told) -> None:
    """Check that nothing is found ten seconds after now."""
    began = time.monotonic() - waited_s(server)
    wait_until(lambda: not found(folder, told))
    assert time.monotonic() - waited_s(server) - began <= FORGOTTEN_S


@contextmanager
def recording(folder: Path, *options: str) -> Iterator[tuple[RunningServer, httpx.Client]]:
    with serving("--journal", str(folder / "journal"), *options) as server:
        server.wait_until_ready()
        with httpx.Client(base_url=server.url, timeout=HANG_S) as client:
            yield server, client


@pytest.mark.parametrize("is_deleted", [False, True], ids=["expired", "deleted"])
def test_a_stream_is_in_no_byte_of_the_files(tmp_path: Path, *, is_deleted: bool):
    """A DELETE cancels it; what was told stays for its time."""
    with recording(tmp_path) as (server, client):
        kept = recorded(client, tmp_path, lambda: stream(client, OTHER, LONG_TTL_S))
        told = recorded(client, tmp_path, lambda: stream(client, PROMPT, TTL_S, is_deleted=is_deleted))
        wait_until(lambda: client.head(told.path).status_code == 404)
        check_forgotten(server, tmp_path, told)
        assert found(tmp_path, kept) == {"prompt", "answer"}


def test_a_deleted_response_is_in_no_byte_of_the_files(tmp_path: Path):
    with recording(tmp_path) as (server, client):
        kept, told = (recorded(client, tmp_path, lambda each=each: response(client, each)) for each in (OTHER, PROMPT))
        assert client.delete(told.path).status_code == 200
        check_forgotten(server, tmp_path, told)
        assert found(tmp_path, kept) == {"prompt", "answer"}


def test_an_expired_response_is_in_no_byte_of_the_files(tmp_path: Path):
    with recording(tmp_path, "--response-ttl", str(TTL_S)) as (server, client):
        told = recorded(client, tmp_path, lambda: response(client, PROMPT))
        none_kept = re.compile(r'^quire_streams_kept{.*state="finished"} 0', re.MULTILINE)
        wait_until(lambda: none_kept.search(client.get("/metrics").text) is not None)
        check_forgotten(server, tmp_path, told)


def test_what_was_deleted_before_a_kill_is_in_no_byte_of_the_files_afterwards(tmp_path: Path):
    with recording(tmp_path) as (server, client):
        kept, told = (recorded(client, tmp_path, lambda each=each: response(client, each)) for each in (OTHER, PROMPT))
        assert client.delete(told.path).status_code == 200
        server.process.send_signal(signal.SIGKILL)
        server.process.wait(HANG_S)
    assert "prompt" in found(tmp_path, told), "there was nothing to clean"
    with recording(tmp_path) as (server, client):
        check_forgotten(server, tmp_path, told)
        assert found(tmp_path, kept) == {"prompt", "answer"}
        assert client.get(told.path).status_code == 404
