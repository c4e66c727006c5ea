"""The prefix cache on disk, from outside: what a process computed is found by the next, also after a kill -9."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from tests.api.resuming import RESUME, events_of, told
from tests.server.processes import HANG_S, RunningServer
from tests.server.quick_start import quire, serving
from tests.text.templates import WHOLE_CHAT

CHAT = "/v1/chat/completions"
FIRST = {"role": "user", "content": "What is Quire, and how do I start it on my machine with a model of my own? " * 4}
SECOND = {"role": "user", "content": "And on a GPU?"}
OPTIONS = {"max_tokens": 40, "temperature": 0, "ignore_eos": True}
LONG = {"max_tokens": 200}
SERVED = ("--chat-template", str(WHOLE_CHAT))


class Undisturbed(NamedTuple):
    """Answers of a server without a folder: of both turns, and a long one of the first."""

    first: str
    second: str
    long: str


def ask(client: httpx.Client, *messages: dict[str, str], **fields: object) -> dict[str, Any]:
    response = client.post(CHAT, json={"messages": list(messages), **OPTIONS, **fields})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def text_of(answer: dict[str, Any]) -> str:
    return str(answer["choices"][0]["message"]["content"])


def num_cached(answer: dict[str, Any]) -> int:
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


def metric(client: httpx.Client, name: str) -> int:
    found = re.search(rf"^{name}{{.*}} (\d+)", client.get("/metrics").text, re.M)
    assert found is not None, name
    return int(found[1])


def wait_for(client: httpx.Client, name: str, count: int) -> None:
    deadline = time.monotonic() + HANG_S
    while metric(client, name) < count:
        assert time.monotonic() < deadline, f"{name} does not reach {count}"
        time.sleep(0.05)


def num_full(answer: dict[str, Any]) -> int:
    """The full blocks of a turn; its last token has no keys and values."""
    return int(answer["usage"]["total_tokens"] - 1) // 16


@pytest.fixture(scope="module")
def undisturbed() -> Undisturbed:
    with serving(*SERVED) as server, client_of(server) as client:
        first = text_of(ask(client, FIRST))
        second = text_of(ask(client, FIRST, {"role": "assistant", "content": first}, SECOND))
        return Undisturbed(first, second, text_of(ask(client, FIRST, **LONG)))


def client_of(server: RunningServer) -> httpx.Client:
    server.wait_until_ready()
    return httpx.Client(base_url=server.url, timeout=HANG_S)


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM], ids=["kill -9", "SIGTERM"])
def test_the_next_turn_after_a_restart_is_warm(end: signal.Signals, tmp_path: Path, undisturbed: Undisturbed):
    folder = (*SERVED, "--kv-disk", str(tmp_path / "kv"))
    with serving(*folder) as server, client_of(server) as client:
        first = ask(client, FIRST)
        assert text_of(first) == undisturbed.first and num_cached(first) == 0
        if end is signal.SIGKILL:
            wait_for(client, "quire_kv_disk_blocks_written_total", num_full(first))
        server.process.send_signal(end)
        assert server.end() == (0 if end is signal.SIGTERM else -end)
    assert len([*(tmp_path / "kv").glob("*.kv")]) == num_full(first)
    with serving(*folder) as server, client_of(server) as client:
        second = ask(client, FIRST, {"role": "assistant", "content": text_of(first)}, SECOND)
        assert text_of(second) == undisturbed.second
        assert num_cached(second) >= first["usage"]["prompt_tokens"] // 16 * 16
        assert metric(client, "quire_kv_disk_blocks_read_total") == num_cached(second) // 16
        by_source = client.get("/metrics").text
        assert f'source="external_kv_transfer"}} {num_cached(second)}.0' in by_source


def test_an_answer_that_goes_on_after_a_kill_uses_it(tmp_path: Path, undisturbed: Undisturbed):
    options = (*SERVED, "--kv-disk", str(tmp_path / "kv"), "--journal", str(tmp_path / "journal"))
    body = {"messages": [FIRST], **OPTIONS, **LONG, "stream": True}
    with (
        serving(*options) as server,
        client_of(server) as client,
        client.stream("POST", CHAT, json=body, headers=RESUME) as response,
    ):
        path = f"/v1/streams/{response.headers['x-quire-stream-id']}"
        next(response.iter_text())
        wait_for(client, "quire_kv_disk_blocks_written_total", 4)
        server.process.send_signal(signal.SIGKILL)
        server.process.wait(HANG_S)
    with serving(*options) as server, client_of(server) as client:
        whole = told(events_of(client.get(path).text))
        assert whole["choices"][0]["delta"]["content"] == undisturbed.long
        assert metric(client, "quire_kv_disk_blocks_read_total") >= 4


def test_what_cannot_be_used_is_said_before_the_model_is_loaded(tmp_path: Path):
    (tmp_path / "file").write_text("x")
    taken = quire("serve", "--port", "0", "--kv-disk", str(tmp_path / "file"))
    assert taken.returncode == 2 and "Give --kv-disk the path of a folder" in taken.stderr
    without = quire("serve", "--port", "0", "--kv-disk", str(tmp_path / "kv"), "--no-enable-prefix-caching")
    assert without.returncode == 2 and "kv_disk needs prefix caching" in without.stderr
