"""A real server tries grammars in processes of their own: ordinary ones work, hostile ones harm no stream."""

import json
import re
import signal
from pathlib import Path

import httpx

from app.checkpoint.names import resolve
from app.commands.budget import grammar_process_bytes
from app.runtime.process_memory import family_bytes
from tests.server.processes import HANG_S
from tests.server.quick_start import serving
from tests.text.grammar.children.trials import has_ended, wait_for

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "What is Quire?"}]
HOSTILE = {"type": "integer", "multipleOf": 49999991}


def children_of(pid: int) -> list[int]:
    """The processes that a process has started, of all its threads."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(name) for children in tasks for name in children.read_text().split()]


def resident_bytes(pid: int) -> int:
    """The memory of a process, with all that it shares."""
    found = re.search(r"^VmRSS:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found is not None
    return 1024 * int(found[1])


def schema_body(schema: object, **fields: object) -> dict[str, object]:
    """A chat whose answer must satisfy a schema."""
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    return {"messages": MESSAGES, "response_format": form, **fields}


def test_hostile_grammars_are_rejected_while_streams_go_on_and_all_processes_end_with_the_server():
    expression = {"messages": MESSAGES, "structured_outputs": {"regex": "[ab]{3}"}}
    good = [{"enum": ["yes", "no"]}, {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}]
    with serving() as server, httpx.Client(base_url=server.url, timeout=HANG_S) as client:
        server.wait_until_ready()
        pid = server.process.pid
        assert children_of(pid) == [], "no process is started before the first grammar"
        stream = {"messages": MESSAGES, "stream": True, "ignore_eos": True, "max_tokens": 1000}
        with client.stream("POST", CHAT, json=stream) as running:
            events = running.iter_lines()
            next(events)
            answers = [client.post(CHAT, json=schema_body(schema)) for schema in good]
            contents = [json.loads(answer.json()["choices"][0]["message"]["content"]) for answer in answers]
            assert contents[0] in ("yes", "no") and contents[1]["a"] in (1, 2)
            assert client.post(CHAT, json=expression).status_code == 200
            (child,) = children_of(pid)
            # It would keep the interpreter's lock from the event loop: up to 88 ms for a schema of many unions.
            assert "llguidance" not in Path(f"/proc/{pid}/maps").read_text()
            assert "llguidance" in Path(f"/proc/{child}/maps").read_text()
            for _ in range(2):
                refused = client.post(CHAT, json=schema_body(HOSTILE))
                error = refused.json()["error"]
                assert refused.status_code == 400 and error["param"] == "response_format.json_schema.schema"
                assert "more than 1 s of processor time" in error["message"]
            assert children_of(pid) == [child]
            assert list(events)[-2:] == ["data: [DONE]", ""]
        server.process.send_signal(signal.SIGTERM)
        assert server.end() == 0
        wait_for(lambda: has_ended(child))


def test_the_processes_end_with_a_server_that_is_killed():
    with serving() as server:
        server.wait_until_ready()
        choice = {"messages": MESSAGES, "structured_outputs": {"choice": ["yes"]}}
        assert httpx.post(server.url + CHAT, json=choice, timeout=HANG_S).status_code == 200
        (child,) = children_of(server.process.pid)
        server.process.kill()
        server.end()
        wait_for(lambda: has_ended(child))


def test_the_processes_share_their_vocabulary_and_take_what_the_plan_says():
    with serving() as server, httpx.Client(base_url=server.url, timeout=HANG_S) as client:
        server.wait_until_ready()
        for name in "abc":
            schema = {"type": "object", "properties": {name: {"type": "boolean"}}, "required": [name]}
            assert client.post(CHAT, json=schema_body(schema)).status_code == 200
        (child,) = children_of(server.process.pid)
        family = [child, *children_of(child)]
        assert len(family) > 1
        num_bytes = family_bytes(child)
        assert num_bytes <= 1.5 * max(map(resident_bytes, family))
        vocab_size = json.loads((resolve("guide") / "config.json").read_text())["vocab_size"]
        assert num_bytes <= 1.5 * grammar_process_bytes(vocab_size)
