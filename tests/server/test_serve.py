"""The real server in a process of its own: from start to each way it ends."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from http.client import HTTPConnection
from pathlib import Path

import httpx
import pytest

from app.checkpoint.folder import resolve
from tests.server.processes import HANG_S, quire, serving

GUIDE = resolve("guide")


def question(**fields: object) -> dict[str, object]:
    """A chat body."""
    return {"messages": [{"role": "user", "content": "What is Quire?"}], "stream": True, "temperature": 0, **fields}


def test_it_answers_from_the_embedded_model_and_ends_with_0_on_sigterm():
    with serving() as server:
        assert httpx.get(server.url).status_code == 200
        assert httpx.get(f"{server.url}/livez").status_code == 200
        server.wait_until_ready()
        with httpx.stream("POST", f"{server.url}/v1/chat/completions", json=question(), timeout=HANG_S) as response:
            assert response.status_code == 200
            events = (line.removeprefix("data: ") for line in response.iter_lines() if line)
            contents = (json.loads(event)["choices"][0]["delta"].get("content") for event in events)
            assert next(filter(None, contents))
        server.process.send_signal(signal.SIGTERM)
        assert server.end() == 0


def test_it_tells_where_the_time_of_the_start_went_if_it_is_asked_to():
    with serving("--timings") as server:
        server.wait_until_ready()
        assert server.process.stdout is not None
        told = ""
        while "open the server" not in told:
            told += server.process.stdout.readline()
        httpx.post(f"{server.url}/v1/chat/completions", json=question(stream=False, max_tokens=1), timeout=HANG_S)
        server.process.send_signal(signal.SIGTERM)
        told += server.process.stdout.read()
        assert server.end() == 0
    of_main = ("Python, the command line", "import the server", "open the server")
    of_engine = ("import torch", "find or compile the kernels", "load and pack the weights", "record the step")
    for part in (*of_main, *of_engine, "First token: "):
        assert told.count(part) == 1, part


def test_the_page_and_the_health_routes_answer_while_the_model_loads():
    """Importing torch alone takes far longer than three requests to a server that listens."""
    with serving() as server:
        connection = HTTPConnection(server.url.removeprefix("http://"))
        for path, status in (("/readyz", 503), ("/livez", 200), ("/", 200)):
            connection.request("GET", path)
            response = connection.getresponse()
            body = response.read()
            assert response.status == status
            assert path == "/" or json.loads(body)["status"] == "loading"
        connection.close()


def test_a_signal_lets_open_answers_end_and_refuses_new_ones():
    with serving() as server:
        server.wait_until_ready()
        body = question(max_tokens=200, ignore_eos=True)
        with httpx.stream("POST", f"{server.url}/v1/chat/completions", json=body, timeout=HANG_S) as response:
            lines = (line for line in response.iter_lines() if line)
            # Ctrl-C waits for answers that have begun: those with a token.
            next(line for line in lines if '"content":"' in line and '"content":""' not in line)
            server.process.send_signal(signal.SIGINT)
            refused = 200
            for line in lines:
                if refused == 200:
                    refused = httpx.get(f"{server.url}/readyz").status_code
                last = line
        assert refused == 503
        assert last == "data: [DONE]"
        assert server.end() == 0


def test_a_second_signal_ends_it_at_once():
    with serving("--drain-timeout", "600") as server:
        server.wait_until_ready()
        body = question(max_tokens=1900, ignore_eos=True)
        with httpx.stream("POST", f"{server.url}/v1/chat/completions", json=body, timeout=HANG_S) as response:
            next(response.iter_lines())
            server.process.send_signal(signal.SIGTERM)
            assert server.process.stdout is not None
            while not server.process.stdout.readline().startswith("Shutting down"):
                pass
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(5) == 0


def test_it_ends_well_when_nobody_reads_its_output_any_more():
    with serving() as server:
        server.wait_until_ready()
        assert server.process.stdout is not None
        server.process.stdout.close()
        server.process.send_signal(signal.SIGTERM)
        assert server.end() == 0


def test_sigterm_before_it_listens_ends_it_with_0(tmp_path):
    """While it imports the server: the file of its settings is a pipe, so a test can wait until it has come there."""
    settings = tmp_path / "quire.toml"
    os.mkfifo(settings)
    command = [sys.executable, "-m", "app", "serve", "--port", "0", "--config", str(settings)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    with settings.open("w"):  # opens once it is read, which never ends
        process.send_signal(signal.SIGTERM)
        assert process.wait(HANG_S) == 0
    assert process.communicate()[0] == b""


def test_a_signal_while_the_model_loads_ends_it():
    with serving() as server:
        server.process.send_signal(signal.SIGTERM)
        assert server.end() == 0


def test_a_signal_while_a_large_model_loads_ends_it_at_once(tmp_path):
    """These weights take far longer to make than the limit below, and the engine is waited for longer, too."""
    shape = json.loads((GUIDE / "config.json").read_text()) | {
        "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 300,
        "num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 64,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(shape))
    with serving(str(tmp_path), "--load-format", "dummy") as server:
        while httpx.get(f"{server.url}/readyz").json()["progress"] == 0:
            assert server.process.poll() is None
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(5) == 0


def test_a_port_in_use_ends_it_with_75():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        result = quire("serve", "--port", str(taken.getsockname()[1]))
    assert result.returncode == 75
    assert_one_line(result.stderr, "in use")


def broken(tmp_path: Path, damage: str) -> Path:
    """A copy of the embedded model with one thing wrong."""
    folder = tmp_path / "model"
    shutil.copytree(GUIDE, folder)
    weights, config = folder / "model.safetensors", folder / "config.json"
    match damage:
        case "missing":
            shutil.rmtree(folder)
        case "empty":
            shutil.rmtree(folder)
            folder.mkdir()
        case "truncated":
            weights.write_bytes(weights.read_bytes()[:-1000])
        case "no safetensors":
            weights.write_bytes(b"\x80\x04")
        case "pickled":
            weights.rename(folder / "pytorch_model.bin")
        case "architecture":
            fields = json.loads(config.read_text())
            config.write_text(json.dumps(fields | {"architectures": ["Foo"], "model_type": "foo"}))
        case "config":
            config.write_text("{")
        case "tokenizer":
            (folder / "tokenizer.json").unlink()
        case "template depth":
            (folder / "chat_template.jinja").write_text("{% if a %}" * 400 + "{% endif %}" * 400)
    return folder


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        ("missing", "no folder"),
        ("empty", "config.json"),
        ("truncated", "model.safetensors"),
        ("no safetensors", "model.safetensors"),
        ("pickled", "safetensors"),
        ("architecture", "Foo"),
        ("config", "config.json"),
        ("tokenizer", "tokenizer.json"),
        ("template depth", "nested too deeply"),
    ],
)
def test_a_bad_model_folder_is_refused_in_one_line(tmp_path, damage, says):
    result = quire("serve", "--port", "0", "--model", str(broken(tmp_path, damage)))
    assert result.returncode == 2
    assert result.stdout == ""
    assert_one_line(result.stderr, says)


def test_too_little_memory_ends_it_with_75():
    """Found while the model loads, on the engine thread."""
    result = quire("serve", "--port", "0", "--kv-cache-memory", "1KiB")
    assert result.returncode == 75
    assert "quire: error:" in result.stderr
    assert "Traceback" not in result.stderr


def assert_one_line(stderr: str, says: str) -> None:
    """The error is one line that names the cause."""
    lines = stderr.strip().splitlines()
    assert len(lines) == 1, stderr
    assert lines[0].startswith("quire: error: ")
    assert says in lines[0]
